"""Updates of tensors whose elements share memory give eager's values in regions of Inductor."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import thunder_core as thunder
from tests.executors.inductor.regions import evaluate_region
from thunder_core.backend.fusion.partition import partition_into_regions
from thunder_core.foundation.tested_versions import release_of
from thunder_executors.inductor import EXECUTOR, imported
from thunder_executors.inductor.build import build

not_mended = pytest.mark.skipif(
    (release_of(torch.__version__) or (0, 0)) >= (2, 14),
    reason="PyTorch 2.14 mended this fault; earlier ones have it",
)

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason="needs a C++ compiler")

ROWS = torch.tensor([2, 0])
UPDATES = {
    "index_add, expanded zeros": lambda x: x.new_zeros(4).expand(4, 4).index_add(1, torch.arange(4), x),
    "index_add, overlapping windows": lambda x: (x.view(-1) + 1).as_strided((4, 4), (2, 1)).index_add(0, ROWS, x[:2]),
    "index_put, one column": lambda x: x.new_zeros(4, 1).expand(4, 4).index_put((ROWS,), x[:2]),
    "index_put, unfolded": lambda x: (
        x.exp().view(-1).unfold(0, 4, 2).index_put((ROWS, ROWS), x[0, :2], accumulate=True)
    ),
    "index_copy, computed row": lambda x: x[0].cos().expand(4, 4).index_copy(0, ROWS, x[:2]),
    "index_fill, computed row": lambda x: x[0].cos().expand(4, 4).index_fill(1, ROWS, 3.0),
    "put, one element": lambda x: x.new_ones(1).expand(16).put(ROWS, x[0, :2]),
    "a view of an expanded tensor": lambda x: x.new_zeros(4).expand(2, 4, 4)[1].index_put((ROWS,), x[:2]),
    "repeated": lambda x: x.new_zeros(1, 4).repeat(4, 1).index_add(1, ROWS, x[:, :2]),
    "cloned": lambda x: x.new_zeros(4).expand(4, 4).clone().index_put((ROWS,), x[:2]),
    "select_scatter": lambda x: torch.select_scatter(x[0].sin().expand(4, 4), x[1], 0, 1),
    "slice_scatter": lambda x: torch.slice_scatter(x[0].sin().expand(4, 4), x[:2], 0, 1, 3),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x[0].sin().expand(4, 4), x[1]),
    "a tensor of its own": lambda x: x.exp().index_add(0, ROWS, x[:2]),
    "gradients of a batch": lambda x: torch.vmap(torch.func.grad(lambda row: row.index_select(0, ROWS).sum()))(x),
}


def update_all(x):
    return [update(x) * 2 for update in UPDATES.values()]


def test_updates_of_tensors_that_share_memory_are_eagers():
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    compiled = thunder.jit(update_all, executors=("inductor", "torch"))
    for name, ours, eager in zip(UPDATES, compiled(x), update_all(x), strict=True):
        torch.testing.assert_close(ours, eager, msg=lambda text, name=name: f"{name}: {text}")
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    assert "inductor" in {line.executor for line in lines}


@not_mended
def test_inductor_alone_still_updates_in_place(monkeypatch):
    """If this fails, PyTorch has fixed its fault, and `careful_reinplacing` can be removed."""
    monkeypatch.setattr(imported, "careful_reinplacing", nullcontext)
    x = torch.arange(16.0).view(4, 4)
    compiled = thunder.jit(lambda x: UPDATES["index_put, one column"](x) * 2, executors=("torch",))
    compiled(x)
    trace = next(stage for stage in thunder.last_traces(compiled) if stage.made_by.startswith("drop"))
    ((_, occurrence),) = partition_into_regions(trace, EXECUTOR.fuses, updates=True).occurrences
    (kept,) = build([occurrence.region])
    given = {"x": x, "ROWS": ROWS}
    tensors = [given[proxy.name] for proxy in occurrence.inputs]
    (expected,) = evaluate_region(occurrence.region, tuple(tensors))
    assert not torch.equal(kept.function("region")(tensors), expected)
