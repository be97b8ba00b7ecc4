"""Results of Inductor have the traced sizes, even if its lowerings depend on symbolic sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_executors.inductor import lowered_sizes


def pooled(x: Tensor) -> Tensor:
    """Average pooling whose last window extends beyond the end for some sizes, and would begin in the padding."""
    return functional.avg_pool1d(x.reshape(1, 1, -1), 3, ceil_mode=True, padding=1)


def test_windows_beyond_the_end_are_counted_as_in_eager_pytorch() -> None:
    compiled = thunder.jit(pooled, executors=("inductor", "torch"), cache="symbolic values")
    for shape in ((7, 5), (4, 5)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).t()
        torch.testing.assert_close(compiled(x), pooled(x))
    assert {bsym.executor for bsym in thunder.last_traces(compiled)[-1].bound_symbols} == {"inductor"}


def test_a_lowering_that_gives_other_sizes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def one_more(*args: Any, **kwargs: Any) -> tuple[Any, bool]:
        size, ceil_mode = original(*args, **kwargs)
        return size + 1, ceil_mode

    original = lowered_sizes.inductor_pooling_size
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(lowered_sizes, "inductor_pooling_size", one_more)
    compiled = thunder.jit(pooled, executors=("inductor", "torch"), cache="symbolic values")
    x = torch.randn(7, 5).t()
    torch.testing.assert_close(compiled(x), pooled(x))
    trace = thunder.last_traces(compiled)[-1]
    assert any("was lowered to the sizes" in refusal.reason for refusal in trace.refused)
    assert {bsym.executor for bsym in trace.bound_symbols} <= {"torch", ""}
