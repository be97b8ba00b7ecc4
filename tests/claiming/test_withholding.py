"""Executors that are excluded from modules: others run these operations, forward and backward, and are counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from tests.fusion.test_fuse import Replays
from thunder_core.backend.claiming.claim import program_bsyms
from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.withholding import LEFT_OUT
from thunder_core.backend.fusion.wrapping import WrappingExecutor
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

ONE = "layers.1.mlp"


class Mlp(torch.nn.Module):
    """Two operations that fuse, between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.up(x)).sin() * 2)


class Layer(torch.nn.Module):
    """A block that contains the inner module."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.norm = Mlp(), torch.nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() + self.mlp(self.norm(x)).exp()


class Stack(torch.nn.Module):
    """Two blocks; the inner module of the second block is excluded."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(Layer(), Layer())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).cos().sin()


def compiled_stack(*executors: Any, **options: Any) -> tuple[Stack, Any]:
    """Return a stack, and the same stack compiled."""
    torch.manual_seed(0)
    stack = Stack()
    return stack, thunder.jit(stack, executors=[*executors, "torch"], **options)


def of_module(bsym: BoundSymbol, path: str) -> bool:
    """Whether a bound symbol belongs to that module, or is derived from one that does."""
    derived = bsym.derives is not None and of_module(bsym.derives, path)
    return derived or f"{bsym.module}.".startswith(f"{path}.")


def executors_in(trace: Trace, path: str) -> set[str]:
    """Return the executors that run operations of that module."""
    claimed = [bsym for bsym in trace.bound_symbols if bsym.executor]
    return {bsym.executor for bsym in claimed if any(of_module(item, path) for item in program_bsyms(bsym))}


def assert_alike(stack: Stack, compiled: Any, size: int = 3) -> None:
    """Compare results and all gradients with eager PyTorch's."""
    torch.manual_seed(1)
    x = torch.randn(size, 4)
    found = []
    for call in (compiled, stack):
        stack.zero_grad()
        result = call(x)
        result.sum().backward()
        found.append([result, *(parameter.grad.clone() for parameter in stack.parameters())])
    torch.testing.assert_close(*found)


def count_withheld(trace: Trace) -> dict[str, int]:
    """Return the number of bound symbols that were withheld from each executor."""
    return {refusal.executor: refusal.count for refusal in trace.refused if refusal.reason == LEFT_OUT}


def test_rest_of_a_region_is_still_fused_forward_and_backward() -> None:
    stack, compiled = compiled_stack(Replays(), without=[f"replays:{ONE}"])
    assert_alike(stack, compiled)
    for trace in (thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]):
        assert executors_in(trace, ONE) == {"torch"}
        assert executors_in(trace, "layers.0.mlp") == executors_in(trace, "layers.1.norm") == {"replays"}
        (refused,) = trace.refused
        assert (refused.executor, refused.reason, refused.lasting) == ("replays", LEFT_OUT, True)
        assert refused.count > 4


def test_end_of_a_path_names_an_inner_module() -> None:
    stack, compiled = compiled_stack(Replays(), without=["replays:up"])
    assert_alike(stack, compiled)
    trace = thunder.last_traces(compiled)[-1]
    for layer in "01":
        assert executors_in(trace, f"layers.{layer}.mlp.up") == {"torch"}
        assert executors_in(trace, f"layers.{layer}.mlp.down") == {"replays"}
    assert count_withheld(trace) == {"replays": 2}


def silu_executor(name: str) -> thunder.OperatorExecutor:
    """Return an executor of one operation."""
    executor = thunder.OperatorExecutor(name)
    executor.implements(functional.silu)(plain_silu)
    return executor


def plain_silu(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002 - as PyTorch calls it
    return input * torch.sigmoid(input)


def test_withheld_operation_goes_to_the_next_executor() -> None:
    with torch.no_grad():
        stack, compiled = compiled_stack(
            silu_executor("first"), silu_executor("second"), without=["first:layers.1", "second:layers.0"]
        )
        x = torch.ones(2, 4)
        torch.testing.assert_close(compiled(x), stack(x))
    trace = thunder.last_traces(compiled)[-1]
    takers = {bsym.module: bsym.executor for bsym in trace.bound_symbols if bsym.executor not in ("", "torch")}
    assert takers == {"layers.0.mlp": "first", "layers.1.mlp": "second"}
    assert count_withheld(trace) == {"first": 1}  # the first executor claimed the other operation first


def gated(x: Tensor) -> Tensor:
    return functional.silu(x).sin()


def test_any_bound_symbol_of_a_match_decides() -> None:
    mine = thunder.OperatorExecutor("mine")

    @mine.replaces(lambda x, weight, bias: gated(functional.linear(x, weight, bias)))
    def fast(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return gated(functional.linear(x, weight, bias))

    stack, compiled = compiled_stack(mine, without=["mine:layers.1.mlp.up"])
    assert_alike(stack, compiled)
    with torch.no_grad():
        compiled(torch.ones(3, 4))
    trace = thunder.last_traces(compiled)[-1]
    (match,) = [bsym for bsym in trace.bound_symbols if bsym.executor == "mine"]
    assert match.module == "layers.0.mlp"
    assert count_withheld(trace) == {"mine": 3}
    assert count_withheld(thunder.last_traces(compiled)[-1]) == {"mine": 3}


def test_derivative_of_a_match_is_withheld_with_the_match() -> None:
    mine = thunder.OperatorExecutor("mine")
    mine.replaces(gated)(lambda x: gated(x) * 1)
    stack, compiled = compiled_stack(mine, Replays(), without=["replays:layers.1.mlp"])
    assert_alike(stack, compiled)
    assert executors_in(thunder.last_traces(compiled)[-1], ONE) <= {"mine", "torch"}
    assert "replays" not in executors_in(thunder.last_backward_traces(compiled)[-1], ONE)


def test_program_with_symbolic_sizes_is_withheld_too() -> None:
    mine = thunder.OperatorExecutor("mine")
    mine.replaces(gated)(lambda x: gated(x) * 1)
    stack, compiled = compiled_stack(mine, cache="symbolic values", without=[f"mine:{ONE}"])
    for size in (3, 5, 7):
        assert_alike(stack, compiled, size)
    assert thunder.cache_misses(compiled) == 1
    trace = thunder.last_traces(compiled)[-1]
    assert "mine" not in executors_in(trace, ONE)
    assert "mine" in executors_in(trace, "layers.0.mlp")
    assert count_withheld(trace) == {"mine": 2}


@pytest.mark.parametrize("without", [(), ("mine:layers",)])
def test_withheld_operation_adds_no_constraint_on_sizes(without: tuple[str, ...]) -> None:
    mine = thunder.OperatorExecutor("mine")
    mine.implements(functional.silu, supports=lambda bsym: bsym.output.shape[0] > 4)(plain_silu)
    _, compiled = compiled_stack(mine, cache="symbolic values", without=without)
    with torch.no_grad():
        for size in (8, 3):
            compiled(torch.ones(size, 4))
    assert thunder.cache_misses(compiled) == (1 if without else 2)
    assert count_withheld(thunder.last_traces(compiled)[-1]) == ({"mine": 2} if without else {})


def test_module_within_a_branch_is_excluded() -> None:
    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp()

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.mlp(x).exp().cos(), lambda x: x.cos().sin(), (x,))

    model, x = Branching(), torch.ones(2, 4)
    compiled = thunder.jit(model, executors=[Replays(), "torch"], without=["replays:mlp"])
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    trace = thunder.last_traces(compiled)[-1]
    taken, other = next(bsym.functions for bsym in trace.bound_symbols if bsym.functions)
    assert executors_in(taken, "mlp") == {"torch"}
    assert {bsym.executor for bsym in (*taken.bound_symbols, *other.bound_symbols)} >= {"replays"}
    assert sum(refusal.count for refusal in trace.refused) > 2


@dataclass(frozen=True)
class Wraps(WrappingExecutor):
    """Wraps every bound symbol."""

    name: str = "wraps"
    short_name: str = "wrapped"
    wrapper: str = f"{__name__}.as_it_is"

    @property
    def claims(self) -> str:
        return "what others have claimed"

    def wraps(self, bsym: BoundSymbol) -> bool:
        return True


def as_it_is(function: Any, count: int, **places: Any) -> Any:
    return function


def test_excluded_module_is_not_wrapped() -> None:
    with torch.no_grad():
        stack, compiled = compiled_stack(Wraps(), without=[f"wraps:{ONE}"])
        x = torch.ones(2, 4)
        torch.testing.assert_close(compiled(x), stack(x))
    trace = thunder.last_traces(compiled)[-1]
    wrapped = [bsym for bsym in trace.bound_symbols if bsym.executor == "wraps"]
    assert len(wrapped) == 2
    assert executors_in(trace, ONE) == {"torch"}
    assert count_withheld(trace) == {"wraps": 5}


def test_excluded_module_is_not_checked() -> None:
    _, compiled = compiled_stack(silu_executor("mine"), "debug", without=["debug:layers.1"])
    with torch.no_grad():
        compiled(torch.ones(2, 4))
    (check,) = thunder.checks(compiled)
    assert check.operations == ("torch.nn.functional.silu",)


def test_excluded_executor_and_transforms_are_absent_from_the_backward() -> None:
    stack, compiled = compiled_stack(Replays(), "sdpa", without=["sdpa", "cse", "DropDeadCode"])
    assert_alike(stack, compiled)
    compiler = thunder.compiler.specializations_of(compiled).compiler
    assert ([executor.name for executor in compiler.executors], list(compiler.transforms)) == (["replays", "torch"], [])
    for traces in (thunder.last_traces(compiled), thunder.last_backward_traces(compiled)):
        made_by = " ".join(trace.made_by for trace in traces)
        assert "dead code" not in made_by
        assert "common" not in made_by


def test_modules_that_a_function_reads_are_excluded_by_path() -> None:
    stack = Stack()

    def step(x: Tensor) -> Tensor:
        return stack(x).sum()

    compiled = thunder.jit(step, executors=[silu_executor("mine"), "torch"], without=["mine:layers.1"])
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(2, 4)), step(torch.ones(2, 4)))
    assert count_withheld(thunder.last_traces(compiled)[-1]) == {"mine": 1}


def test_executor_with_its_own_claim_method_is_excluded_too() -> None:
    @dataclass(frozen=True)
    class Greedy(Executor):
        name: str = "greedy"
        seen: list[str] = field(default_factory=list, compare=False)

        @property
        def claims(self) -> str:
            return "all"

        def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
            return None

        def claim_all(self, trace: Trace) -> Trace:
            self.seen.extend(bsym.module for bsym in trace.bound_symbols if not bsym.executor)
            return trace

    greedy = Greedy()
    _, compiled = compiled_stack(greedy, without=["greedy:mlp"])
    with torch.no_grad():
        compiled(torch.ones(2, 4))
    assert greedy.seen
    assert not [path for path in greedy.seen if ".mlp" in path]
