"""Slices between expressions of sizes, lowered as for PyTorch 2.11, which does not lower them itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_executors.inductor import slices

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "halves": lambda x: torch.cat([x[:, x.shape[1] // 2 :] * 2, x[:, : x.shape[1] // 2] + 1], 1).exp(),
    "from the end": lambda x: x[:, -3:].exp() + 1,
    "up to the end": lambda x: (x[:, :-2].exp() * 2)[:, 1:] + 1,
    "beyond the end": lambda x: x[:, 2:9].exp() * x[:, 2:9],
    "with a step": lambda x: x.exp()[:, 1::2] * 2,
    "past each other": lambda x: functional.pad(x[:, x.shape[0] : x.shape[1]].exp() + 1, (1, 0)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_slices_are_clamped_to_their_dimension(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    def slice_dimension(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return original(*args, **options)

    original = slices.slice_dimension
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(slices, "INDUCTOR_CLAMPS", False)
    monkeypatch.setattr(slices, "slice_dimension", slice_dimension)
    compiled = thunder.jit(PROGRAMS[name], cache="symbolic values", executors=("inductor", "torch"))
    for batch, length in ((3, 11), (1, 5), (2, 4), (4, 3), (5, 12)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(compiled(x), PROGRAMS[name](x))
        assert not thunder.last_traces(compiled)[-1].refused
    assert calls
    assert thunder.cache_misses(compiled) <= 2
