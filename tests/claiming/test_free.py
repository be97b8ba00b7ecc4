"""Freeing: a region that empties its argument list is the only holder of the tensors, and frees them early."""

from __future__ import annotations

import itertools
import timeit
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder
from tests.fusion.test_fuse import Replays
from thunder_core.backend.claiming.free import free_after_last_use
from thunder_core.backend.fusion.fuse import Fused
from thunder_core.backend.fusion.region import Region
from thunder_core.compilation.memory.use import memory_use
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


class Empties(Replays):
    """Receives each region's tensors in a list, empties the list, and records which tensors are freed then."""

    def __init__(self) -> None:
        super().__init__("empties")
        self.gone: list[list[bool]] = []

    def compile(self, regions: Any) -> list[Fused]:
        return [Fused(self.emptying(region), empties=True) for region in regions]

    def emptying(self, region: Region) -> Callable[[str], Callable[..., Any]]:
        def named(name: str) -> Callable[..., Any]:
            inner = self.runner(region)(name)

            def run(given: list[torch.Tensor]) -> Any:
                assert type(given) is list
                known = [weakref.ref(tensor) for tensor in given]
                results = inner(*given)
                given.clear()
                self.gone.append([tensor() is None for tensor in known])
                return results

            run.__name__ = run.__qualname__ = name
            return run

        return named


def compiled_with(function: Callable[..., Any]) -> tuple[Any, Empties]:
    executor = Empties()
    return thunder.jit(function, executors=(executor, "torch")), executor


def drawn_upon(x: torch.Tensor, given_0: torch.Tensor) -> torch.Tensor:
    noise = torch.rand(256, 64)
    return (noise * given_0 + x).exp() @ x.t()


X, Y = torch.rand(256, 64, generator=torch.Generator().manual_seed(0)), torch.full((256, 64), 0.5)


def test_last_use_in_a_region_frees_the_tensor_while_the_region_runs():
    compiled, executor = compiled_with(drawn_upon)
    torch.manual_seed(0)
    with torch.no_grad():
        found = compiled(X, Y)
    torch.manual_seed(0)
    torch.testing.assert_close(found, drawn_upon(X, Y))
    assert executor.gone == [[True, False, False]]
    last = thunder.last_traces(compiled)[-1]
    text = str(last)
    assert "given_1 = [t1, given_0, x]\n    del t1\n" in text, "the argument is called given_0"
    assert "= region_0(given_1)" in text
    assert "#   (t1, given_0, x) = given_1\n" in text


def test_region_without_last_uses_takes_an_inline_list():
    compiled, executor = compiled_with(lambda x: (x.exp() + 1) * 2)
    compiled(X)
    assert executor.gone == [[False]]
    assert "region_0([x])" in str(thunder.last_traces(compiled)[-1])


def test_memory_estimate_counts_tensors_that_only_a_list_holds():
    compiled, _ = compiled_with(drawn_upon)
    with torch.no_grad():
        compiled(X, Y)
    trace = thunder.last_traces(compiled)[-1]
    use = memory_use(trace)
    made, result = X.nbytes, 256 * 256 * 4
    assert [(line.call, line.held - use.outside) for line in use.lines] == [
        ("torch.rand", made),
        ("python.list", made),
        ("python.del", made),
        ("region_0", result),
    ]


def chain(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    middle = torch.nn.functional.silu(x @ weight) * 2
    return middle, (middle @ weight).exp().sum()


def checkpointed(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return checkpoint(chain, x, weight, use_reentrant=False)


def leaves() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    pair = torch.randn(8, 4, generator=generator), torch.randn(4, 4, generator=generator) / 4
    return tuple(tensor.requires_grad_() for tensor in pair)


def twice(run: Callable[..., Any]) -> list[torch.Tensor]:
    """Run two backward passes: saved tensors are available to both, and the user's tensor is unchanged."""
    x, weight = leaves()
    middle, end = run(x, weight)
    copied = middle.detach().clone()
    end.backward(retain_graph=True)
    (end.sum() + middle.sum()).backward()
    torch.testing.assert_close(middle.detach(), copied)
    return [x.grad, weight.grad, middle.detach()]


def second_derivative(run: Callable[..., Any]) -> list[torch.Tensor]:
    x, weight = leaves()
    (first,) = torch.autograd.grad(run(x, weight)[1], x, create_graph=True)
    first.square().sum().backward()
    return [first.detach(), x.grad, weight.grad]


def hooked(run: Callable[..., Any]) -> list[torch.Tensor]:
    """One hook keeps the gradient, and another hook replaces a gradient."""
    x, weight = leaves()
    seen: list[torch.Tensor] = []
    x.register_hook(seen.append)
    weight.register_hook(lambda gradient: gradient * 3)
    middle, end = run(x, weight)
    (end + middle.sum()).backward()
    return [*seen, x.grad, weight.grad]


@pytest.mark.parametrize("function", [chain, checkpointed])
@pytest.mark.parametrize("use", [twice, second_derivative, hooked])
def test_gradients_do_not_depend_on_freeing(use, function):
    compiled, executor = compiled_with(function)
    for found, expected in zip(use(compiled), use(chain), strict=True):
        torch.testing.assert_close(found, expected)
    assert executor.gone


def test_backward_frees_saved_tensors_unless_the_graph_is_retained():
    compiled, executor = compiled_with(lambda x, weight: chain(x, weight)[1])
    gone = []
    for keep in (True, False):
        end = compiled(*leaves())
        executor.gone.clear()
        end.backward(retain_graph=keep)
        gone.append(sum(map(sum, executor.gone)))
    assert gone[0] < gone[1]


def test_error_in_a_region_names_its_line():
    class Fails(Empties):
        def emptying(self, region):
            def run(given):
                given.clear()
                raise RuntimeError("no room")

            return lambda name: run

    compiled = thunder.jit(drawn_upon, executors=(Fails(), "torch"))
    with pytest.raises(RuntimeError, match="no room") as caught, torch.no_grad():
        compiled(X, Y)
    assert any("test_free.py" in note for note in caught.value.__notes__)


def test_compile_time_is_linear_in_the_length_of_a_program() -> None:
    """Four times the lines take far less than sixteen times the time."""
    line = BoundSymbol(symbol_of(torch.tanh), (Proxy("x"),), {}, Proxy("x"))

    def seconds(count: int) -> float:
        names = [Proxy(f"t{number}") for number in range(count + 1)]
        lines = tuple(replace(line, args=(one,), output=other) for one, other in itertools.pairwise(names))
        trace = Trace("computation", (names[0],), lines, (names[-1],))
        return min(timeit.repeat(lambda: free_after_last_use(trace), number=1, repeat=3))

    assert seconds(16_000) < 10 * seconds(4_000)
