"""Executors declare whether they accept symbolic sizes.

Executors that do not have no part in programs with such sizes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.backend.claiming.executor import find_executor
from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
from thunder_core.foundation import plugins
from thunder_core.tracing.ir.symbol import BoundSymbol

TAKES = {
    "torch": True,
    "sdpa": True,
    "inductor": True,
    "triton": True,
    "joined": True,
    "nvfuser": False,
    "cudagraphs": True,
}


@pytest.mark.parametrize("name", TAKES)
def test_each_executor_declares_whether_it_accepts_symbolic_sizes(name: str) -> None:
    if name == "triton" and not plugins.is_installed("triton"):
        pytest.skip("triton is not installed")
    assert find_executor(name).symbolic_sizes is TAKES[name]


def scaled(x: Tensor) -> Tensor:
    return (x * 2).sin() + 1


CONSTANT_SIZES_ONLY = Refusal("it supports only constant sizes", lasting=True, by_sizes=True)


class ByItsSizes(FusionExecutor):
    """An executor that compiles only regions of constant sizes."""

    symbolic_sizes: ClassVar[bool] = True
    name = "by_its_sizes"
    claims = "regions"

    def fuses(self, bsym: BoundSymbol) -> bool:
        return True

    def compile(self, regions: Any) -> list[Fused | Refusal]:
        return [CONSTANT_SIZES_ONLY if region.symbols else Fused(lambda name: scaled_of(name)) for region in regions]


def scaled_of(name: str) -> Any:
    def run(x: Tensor) -> Tensor:
        return scaled(x)

    run.__name__ = name
    return run


def test_regions_that_are_compiled_for_constant_sizes_alone_are_not_given_up() -> None:
    """A second length compiles a second program if one for all lengths would run without the executor's kernels."""
    compiled = thunder.jit(scaled, executors=[ByItsSizes(), "torch"])
    for length in (3, 5, 7):
        torch.testing.assert_close(compiled(torch.ones(length)), scaled(torch.ones(length)))
        assert "by_its_sizes" in {bsym.executor for bsym in thunder.last_traces(compiled)[-1].bound_symbols}
    assert thunder.cache_misses(compiled) == 3
    assert CONSTANT_SIZES_ONLY.reason in thunder.last_program(compiled).constant_because
