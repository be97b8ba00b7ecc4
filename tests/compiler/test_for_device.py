"""Tracing for another device: only one thread traces at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.runtime.compiled import COMPILING
from thunder_core.compilation.compiler import trace_for
from thunder_core.compilation.compiler.compiler import Compiler
from thunder_core.tracing.ir.proxy import TensorProxy


def test_no_other_thread_traces_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    original, owned = Compiler.__call__, []

    def compiling(self: Compiler, *given: Any) -> Any:
        owned.append(COMPILING._is_owned())  # type: ignore[attr-defined]
        return original(self, *given)

    monkeypatch.setattr(Compiler, "__call__", compiling)
    trace_for(thunder.jit(lambda x: x + 1), torch.device("meta"), (torch.ones(2),), {})
    assert owned == [True]


def inverted(x: torch.Tensor) -> torch.Tensor:
    return ~(x > 0)


def negated(x: torch.Tensor) -> torch.Tensor:
    return (x > 0).logical_not() & (x < 1).logical_not()


def masked(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(~(x > 0).logical_not(), 0.0)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("function", [inverted, negated, masked])
def test_functions_that_make_the_gpu_current_are_traced_without_cuda(function: Any, cache: Any) -> None:
    """PyTorch's code for these makes the GPU of a tensor current, which a build without CUDA cannot do."""
    compiled = thunder.jit(function, executors=("torch",), cache=cache)
    program, _ = trace_for(compiled, torch.device("cuda"), (torch.ones(3, 4),), {})
    assert program.constant_because == ""
    assert program.last("computation").outputs[0].device == torch.device("cuda", 0)
    assert bool(program.constraints) is (cache == "symbolic values")


def branches_on_a_constant(x: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(x.shape[0], device=x.device)
    return x * 2 if (positions.diff() == 1).all() else x + 1


@pytest.mark.parametrize("data_dependent", ["guard", "error"])
def test_a_constant_on_an_absent_gpu_is_computed_on_the_cpu(data_dependent: Any) -> None:
    """`transformers` asks in this way whether the positions of a text are consecutive."""
    compiled = thunder.jit(branches_on_a_constant, executors=("torch",), data_dependent=data_dependent)
    program, _ = trace_for(compiled, torch.device("cuda"), (torch.ones(3, 4),), {})
    assert [bsym.symbol.short_name for bsym in program.last("computation").bound_symbols] == ["mul"]


def gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    half, other = (x @ weight).to(x.device, torch.float64).chunk(2, dim=-1)
    return (half.sigmoid() * other)[1:].mean()


def with_a_write(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    row = (x @ weight).view(-1)[::2].clone()
    row[0] = 0
    return torch.where(row > 0, row, row.new_zeros(())).sum()


def batched(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda row: (row @ weight).tanh())(x).sum()


def with_its_own_gradient(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad((x @ weight).square().sum(), weight, create_graph=True)
    return gradient.sum()


@pytest.mark.parametrize("function", [gated, with_a_write, batched, with_its_own_gradient])
def test_gradients_on_an_absent_gpu_are_those_of_the_cpu(function: Any) -> None:
    """PyTorch's autograd records no tensor on a GPU without CUDA, but ends the process."""
    compiled = thunder.jit(function, executors=("torch",))
    x, weight = torch.randn(3, 4), torch.randn(4, 6, requires_grad=True)
    program, _ = trace_for(compiled, torch.device("cuda"), (x, weight), {})
    assert program.derivative is not None, program.no_backward_reason
    program.derivative.complete()
    there = program.traces("backward")[-2]
    assert {proxy.device for bsym in there.bound_symbols for proxy in bsym.tensors} == {torch.device("cuda", 0)}
    here = thunder.jit(function, executors=("torch",))
    here(x, weight).backward()
    names = [bsym.symbol.name for bsym in thunder.last_backward_traces(here)[-2].bound_symbols]
    assert [bsym.symbol.name for bsym in there.bound_symbols] == names


def test_a_program_for_a_target_takes_the_sizes_that_symbolic_names() -> None:
    compiled = thunder.jit(lambda x: (x * 2).sum(0), symbolic=["x.size(0)"], executors=("torch",))
    program, _ = trace_for(compiled, torch.device("cuda"), (torch.ones(3, 4),), {}, target="sm_90")
    (x,) = program.last("computation").inputs
    assert isinstance(x, TensorProxy)
    assert [str(size) for size in x.shape] == ["s0", "4"]


def on_meta(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    row = (x @ weight).tanh()
    return row, row.to("meta"), row.new_zeros(3, device="meta"), torch.ones(2, device="meta")


def on_meta_after_a_gradient(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (gradient,) = torch.autograd.grad((x @ weight).square().sum(), weight, create_graph=True)
    return gradient, gradient.to("meta"), gradient.new_zeros(3, device="meta"), torch.ones(2, device="meta")


@pytest.mark.parametrize(
    ("function", "requires_grad"), [(on_meta, False), (on_meta, True), (on_meta_after_a_gradient, True)]
)
def test_the_meta_device_of_a_program_is_not_the_absent_gpu(function: Any, requires_grad: bool) -> None:
    """PyTorch's autograd gets the meta device in place of a GPU without CUDA."""
    compiled = thunder.jit(function, executors=("torch",))
    weight = torch.randn(4, 6, requires_grad=requires_grad)
    program, _ = trace_for(compiled, torch.device("cuda"), (torch.randn(3, 4), weight), {})
    outputs = program.traces("computation")[0].outputs
    assert [proxy.device for proxy in outputs] == [torch.device("cuda", 0), *[torch.device("meta")] * 3]
