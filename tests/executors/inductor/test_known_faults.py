"""What Inductor computes otherwise than PyTorch stays outside of its regions, for as long as that is so."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional

import thunder_core as thunder
from thunder_executors.inductor import EXECUTOR, WRONG

SCORES = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[-1, 0, 0, 0], [1, 0, -1, 2], [2, 2, 3, -1]])
EXAMPLES = {torch.ops.aten.multilabel_margin_loss_forward.default: (SCORES, LABELS, 1)}
PROGRAMS = {
    "mean": lambda x, labels: functional.multilabel_margin_loss(x, labels) * 2 + 1,
    "each": lambda x, labels: functional.multilabel_margin_loss(x, labels, reduction="none") * 2 + 1,
    "one row": lambda x, labels: functional.multilabel_margin_loss(x[0], labels[0], reduction="sum") * 2 + 1,
    "module": lambda x, labels: torch.nn.MultiLabelMarginLoss()(x, labels) * 2 + 1,
}


def test_each_known_fault_is_still_there() -> None:
    """Where this fails, PyTorch has mended the fault, and the operation may join regions again."""
    assert set(EXAMPLES) == WRONG
    table = select_decomp_table()
    for operation, arguments in EXAMPLES.items():
        right, wrong = operation(*arguments), table[operation](*arguments)
        assert not torch.allclose(right[0], wrong[0])


@pytest.mark.skipif(EXECUTOR.missing() is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", PROGRAMS)
def test_labels_behind_the_end_of_the_list_do_not_count(name: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(program, executors=("inductor", "torch"))
    torch.testing.assert_close(compiled(SCORES, LABELS), program(SCORES, LABELS))
    results = [function(SCORES.clone().requires_grad_(), LABELS) for function in (compiled, program)]
    torch.testing.assert_close(*results)
