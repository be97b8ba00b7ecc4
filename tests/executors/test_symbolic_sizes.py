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
from thunder_core.backend.fusion.region import Region
from thunder_core.foundation import plugins
from thunder_core.tracing.capture.symbolic.shape_env import NamedSource, TraceShapeEnv
from thunder_core.tracing.ir.proxy import TensorProxy, symbols_in
from thunder_core.tracing.ir.sizes import size_for_trace
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.inductor import SYMBOLIC_ON_GPU, Inductor

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
    if name == "triton" and not plugins.installed("triton"):
        pytest.skip("triton is not installed")
    assert find_executor(name).symbolic_sizes is TAKES[name]


def scaled(x: Tensor) -> Tensor:
    return (x * 2).sin() + 1


class ByItsSizes(FusionExecutor):
    """An executor that compiles regions of constant sizes alone, like Inductor on CUDA."""

    symbolic_sizes: ClassVar[bool] = True
    name = "by_its_sizes"
    claims = "regions"

    def fuses(self, bsym: BoundSymbol) -> bool:
        return True

    def compile(self, regions: Any) -> list[Fused | Refusal]:
        return [SYMBOLIC_ON_GPU if region.symbols else Fused(lambda name: scaled_of(name)) for region in regions]


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
    assert SYMBOLIC_ON_GPU.reason in thunder.last_program(compiled).constant_because


def test_inductor_refuses_symbolic_regions_on_cuda() -> None:
    environment = TraceShapeEnv(lambda: None)
    source = NamedSource("x.size(0)")
    number: Any = environment.create_symintnode(environment.create_symbol(8, source), hint=8, source=source)
    x = TensorProxy("x", (size_for_trace(number),), (1,), torch.float32, torch.device("cuda", 0))
    region = Region((x,), (), (x,), (), symbols_in([x]))
    assert Inductor().compile([region]) == [SYMBOLIC_ON_GPU]
