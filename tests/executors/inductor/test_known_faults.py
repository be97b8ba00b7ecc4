"""Operations that Inductor computes differently from PyTorch stay outside of its regions while the fault exists."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional

import thunder_core as thunder
from tests.executors.inductor.regions import evaluate_region
from thunder_core.backend.fusion.partition import partition_into_regions
from thunder_core.foundation.tested_versions import release_of
from thunder_executors import inductor
from thunder_executors.inductor import AS_STRIDED, EXECUTOR, MISCOMPILED
from thunder_executors.inductor.build import build

not_mended = pytest.mark.skipif(
    (release_of(torch.__version__) or (0, 0)) >= (2, 14),
    reason="PyTorch 2.14 mended this fault; earlier ones have it",
)

LABELLED = torch.ops.aten.multilabel_margin_loss_forward.default
SCORES = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[-1, 0, 0, 0], [1, 0, -1, 2], [2, 2, 3, -1]])
PLACES = torch.arange(40.0)
needs_compiler = pytest.mark.skipif(EXECUTOR.missing() is not None, reason="needs a C++ compiler")

PROGRAMS = {
    "mean": lambda x, labels: functional.multilabel_margin_loss(x, labels) * 2 + 1,
    "each": lambda x, labels: functional.multilabel_margin_loss(x, labels, reduction="none") * 2 + 1,
    "one row": lambda x, labels: functional.multilabel_margin_loss(x[0], labels[0], reduction="sum") * 2 + 1,
    "module": lambda x, labels: torch.nn.MultiLabelMarginLoss()(x, labels) * 2 + 1,
}
BY_PLACES = {
    "from the beginning": lambda x: torch.as_strided(x, (2, 2), (1, 2), 0) * 2 + 1,
    "from a place": lambda x: torch.as_strided(x, (2, 2), (1, 2), 5) * 2 + 1,
    "from the first element": lambda x: torch.as_strided(x, (2, 2), (1, 2)) * 2 + 1,
    "of a computed part": lambda x: torch.as_strided((x * 2)[1:], (2, 2), (1, 2), 0) * 2 + 1,
    "of a written part": lambda x: torch.as_strided_scatter(x.exp(), x[:4].view(2, 2), (2, 2), (2, 1), 3) * 2 + 1,
}
TENTHS = torch.tensor([1.0, 0.3, 0.7, 5.0, -1.0, -0.3, 2.0, 7.0, -7.0, 0.9, math.inf] * 3)
DIVISIONS = {
    "floor": lambda x, y: x // y + 1,
    "floor of a constant": lambda x, y: x // 0.1 + 1,
    "floor of an integer": lambda x, y: torch.div(x, 3, rounding_mode="floor") + 1,
    "truncation": lambda x, y: torch.div(x, y, rounding_mode="trunc") + 1,
    "truncation of a constant": lambda x, y: torch.div(x, 0.1, rounding_mode="trunc") + 1,
    "remainder": lambda x, y: x % y + 1,
    "remainder of infinity": lambda x, y: x % math.inf + 1,
    "remainder of a constant": lambda x, y: x % 0.1 + 1,
    "remainder of large numbers": lambda x, y: (x * 123457) % 0.3 + 1,
    "floor of a power of two": lambda x, y: x // 2 + 1,
    "truncation of a power of two": lambda x, y: torch.div(x, -0.25, rounding_mode="trunc") + x * 2,
}
FUSED_DIVISIONS = ("truncation of a power of two",)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", DIVISIONS)
def test_rounded_divisions_match_pytorch(name: str, dtype: torch.dtype) -> None:
    compiled = thunder.jit(DIVISIONS[name], executors=("inductor", "torch"))
    for divisor in (0.1, math.inf, -math.inf, -3.0):
        x = TENTHS.to(dtype)
        y = torch.full_like(x, divisor)
        found, expected = compiled(x, y), DIVISIONS[name](x, y)
        torch.testing.assert_close(found, expected, equal_nan=True)
    regions = [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "inductor"]
    names = {operation.symbol.short_name for region in regions for operation in region.subsymbols}
    assert bool(names & {"div", "floor_divide", "remainder"}) == (name in FUSED_DIVISIONS)


@needs_compiler
@pytest.mark.parametrize("dims", [(), (0,)])
def test_any_of_bytes_has_the_dtype_of_pytorch(dims: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2).any(*dims), x * 3 + 1

    compiled = thunder.jit(program, executors=("inductor", "torch"))
    x = torch.tensor([[0, 1, 2], [0, 0, 3]], dtype=torch.uint8)
    for found, expected in zip(compiled(x), program(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_every_known_fault_is_tested_here() -> None:
    assert {LABELLED, *AS_STRIDED} == MISCOMPILED


@not_mended
def test_labels_behind_the_end_of_the_list_still_count_for_inductor() -> None:
    """If this fails, PyTorch has fixed its decomposition, and the loss may join regions again."""
    right, wrong = LABELLED(SCORES, LABELS, 1), select_decomp_table()[LABELLED](SCORES, LABELS, 1)
    assert not torch.allclose(right[0], wrong[0])


@needs_compiler
def test_places_in_memory_are_still_counted_from_the_first_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, PyTorch has fixed its lowering, and `as_strided` may join regions again."""
    monkeypatch.setattr(inductor, "MISCOMPILED", frozenset())
    compiled = thunder.jit(BY_PLACES["from the beginning"], executors=("torch",))
    compiled(PLACES[3:])
    trace = next(stage for stage in thunder.last_traces(compiled) if stage.made_by.startswith("drop"))
    ((_, occurrence),) = partition_into_regions(trace, EXECUTOR.fuses, updates=True).occurrences
    (kept,) = build([occurrence.region])
    (expected,) = evaluate_region(occurrence.region, (PLACES[3:],))
    found: Any = kept.function("region")([PLACES[3:]])  # type: ignore[union-attr]
    assert not torch.equal(found, expected)


@needs_compiler
@pytest.mark.parametrize("name", PROGRAMS)
def test_labels_behind_the_end_of_the_list_do_not_count(name: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(program, executors=("inductor", "torch"))
    torch.testing.assert_close(compiled(SCORES, LABELS), program(SCORES, LABELS))
    results = [function(SCORES.clone().requires_grad_(), LABELS) for function in (compiled, program)]
    torch.testing.assert_close(*results)


@needs_compiler
@pytest.mark.parametrize("name", BY_PLACES)
def test_places_in_memory_are_eagers(name: str) -> None:
    program = BY_PLACES[name]
    compiled = thunder.jit(program, executors=("inductor", "torch"))
    for x in (PLACES, PLACES[3:], PLACES[4:24:2]):
        torch.testing.assert_close(compiled(x), program(x))
