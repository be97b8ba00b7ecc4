"""Counters that are incremented together have eager's values at each read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.passes.transforms.increments import IncrementTogether
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

Program = Callable[[list[Tensor], Tensor], Any]
ON_CPU = IncrementTogether(devices=("cpu",))


def layers(counters: list[Tensor], x: Tensor) -> Tensor:
    for counter in counters:
        x = (x + counter).sin()
        counter.add_(1)
    return x


def read_again(counters: list[Tensor], x: Tensor) -> Tensor:
    counters[0].add_(1)
    counters[1].add_(1)
    return x * counters[0] + counters[1].add_(1)


def other_numbers(counters: list[Tensor], x: Tensor) -> Tensor:
    counters[0].add_(1)
    counters[1].add_(2)
    counters[2].add_(2)
    return x + 1


def one_counter_twice(counters: list[Tensor], x: Tensor) -> Tensor:
    counters[0].add_(1)
    counters[0].add_(1)
    return x


def views_of_one(counters: list[Tensor], x: Tensor) -> Tensor:
    both = torch.zeros(2, dtype=torch.int64)
    first, second = both[0], both[1]
    first.add_(3)
    second.add_(3)
    y = x[:2] + first
    both.mul_(2)
    return y + both


def returned(counters: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    y = counters[0].add_(1)
    counters[1].add_(1)
    return y, x


def floats(counters: list[Tensor], x: Tensor) -> Tensor:
    x.add_(1)
    (x + 1).add_(1)
    return x


def before_error(counters: list[Tensor], x: Tensor) -> Tensor:
    counters[0].add_(1)
    y = x.index_select(0, counters[2].view(1))
    counters[1].add_(1)
    return y


# The number of additions in place of each program, and after the transform.
PROGRAMS: dict[Program, tuple[int, int]] = {
    layers: (3, 1),
    read_again: (3, 2),
    other_numbers: (3, 2),
    one_counter_twice: (2, 2),
    views_of_one: (2, 2),
    returned: (2, 1),
    floats: (2, 2),
    before_error: (2, 2),
}


def inputs() -> tuple[list[Tensor], Tensor]:
    return [torch.tensor(number) for number in (2, 5, 0)], torch.arange(3.0)


def additions(compiled: Any) -> int:
    return additions_in(thunder.last_traces(compiled)[-1])


def additions_in(trace: Trace) -> int:
    names = [bsym.symbol.short_name for bsym in trace.bound_symbols]
    return names.count("add_") + names.count("_foreach_add_")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_increments_are_joined_and_equal_eager(program: Program) -> None:
    compiled = thunder.jit(program, transforms=[ON_CPU], executors=["torch"])
    plain = thunder.jit(program, executors=["torch"])
    (counters, x), (wanted_counters, wanted_x) = inputs(), inputs()
    for _ in range(3):
        found, wanted = compiled(counters, x), program(wanted_counters, wanted_x)
        torch.testing.assert_close((found, counters, x), (wanted, wanted_counters, wanted_x), rtol=0, atol=0)
    plain(*inputs())
    assert (additions(plain), additions(compiled)) == PROGRAMS[program]


def test_counters_with_the_same_memory_are_incremented_twice() -> None:
    compiled = thunder.jit(layers, transforms=[ON_CPU], executors=["torch"])
    for shared in (False, True):
        counter = torch.tensor(1)
        counters = [counter, counter.view(()) if shared else torch.tensor(1), torch.tensor(4)]
        again = [counter.clone()] * 2 if shared else [counter.clone() for counter in counters]
        again = [*again[:2], torch.tensor(4)]
        x = torch.ones(2)
        assert torch.equal(compiled(counters, x), layers(again, x))
        assert [int(counter) for counter in counters] == [int(counter) for counter in again]


def test_counters_are_incremented_together_by_a_symbolic_size() -> None:
    def program(counters: list[Tensor], x: Tensor) -> Tensor:
        for counter in counters[:2]:
            x = x + counter
            counter.add_(x.shape[0])
        counters[2].add_(1)
        return x

    compiled = thunder.jit(program, transforms=[ON_CPU], executors=["torch"], cache="symbolic values")
    (counters, _), (wanted_counters, _) = inputs(), inputs()
    for length in (3, 5, 8):
        x = torch.arange(float(length))
        torch.testing.assert_close(compiled(counters, x), program(wanted_counters, x))
        assert counters == wanted_counters
    assert (thunder.cache_misses(compiled), additions(compiled)) == (1, 2)


def test_the_cpu_is_left_alone_by_default() -> None:
    compiled = thunder.jit(layers, transforms=[IncrementTogether()], executors=["torch"])
    compiled(*inputs())
    assert additions(compiled) == 3


# ---- errors on a GPU that this machine lacks ------------------------------------------------------------------------

POSITIONS = torch.tensor([0, 1])
# Operations between two increments, and the number of additions afterwards if all tensors are on the GPU.
BETWEEN: dict[str, tuple[Callable[[Tensor, Tensor], Any], int]] = {
    "no error": (lambda x, ids: x.sin(), 1),
    "index_select": (lambda x, ids: x.index_select(0, ids), 1),
    "an index": (lambda x, ids: x[ids], 1),
    "embedding": (lambda x, ids: torch.nn.functional.embedding(ids, x.view(3, 1)), 1),
    "index_copy_": (lambda x, ids: x.clone().index_copy_(0, ids, x[:2]), 1),
    "two masks": (lambda x, ids: x.expand(3, 3)[x > -1, x > -1], 2),
    "index_put_ that accumulates": (lambda x, ids: x.clone().index_put_((ids,), x[:2], accumulate=True), 2),
    "one_hot": (lambda x, ids: torch.nn.functional.one_hot(ids, 2), 2),
    "bincount": (lambda x, ids: ids.bincount(), 2),
    "repeat_interleave": (lambda x, ids: ids.repeat_interleave(ids), 2),
    "cholesky": (lambda x, ids: torch.linalg.cholesky(torch.eye(2)), 2),
    "svd": (lambda x, ids: torch.linalg.svd(x.view(1, 3)), 2),
    "a division of numbers": (lambda x, ids: x * (1 / ids.sum().item()), 2),
}


def between(name: str) -> Trace:
    """Return the trace of a program with an operation between two increments."""

    def program(counters: list[Tensor], x: Tensor, ids: Tensor) -> Any:
        counters[0].add_(1)
        y = BETWEEN[name][0](x, ids)
        counters[1].add_(1)
        return y

    compiled = thunder.jit(program, executors=["torch"], cache="symbolic values")
    compiled(*inputs(), POSITIONS)
    return thunder.last_traces(compiled)[-1]


def tensors_of(bsyms: Iterable[BoundSymbol]) -> dict[str, TensorProxy]:
    found: dict[str, TensorProxy] = {}
    for bsym in bsyms:
        found |= {proxy.name: proxy for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy)}
        found |= tensors_of(bsym.subsymbols)
    return found


def joined_on_gpu(trace: Trace, is_on_gpu: Callable[[TensorProxy], bool] = lambda proxy: True) -> int:
    """Return the number of additions after the transform, with tensors of a trace on a GPU."""
    gpu = torch.device("cuda", 0)
    tensors = tensors_of(trace.bound_symbols).items()
    moved = {name: replace(proxy, device=gpu) for name, proxy in tensors if is_on_gpu(proxy)}
    bsyms = [bsym.rename(moved) for bsym in trace.bound_symbols]
    return additions_in(IncrementTogether()(trace.having(bsyms, made_by="tensors on a GPU")))


@pytest.mark.parametrize("name", BETWEEN)
def test_an_increment_moves_only_past_an_error_that_stops_a_kernel(name: str) -> None:
    trace = between(name)
    assert (additions_in(trace), joined_on_gpu(trace)) == (2, BETWEEN[name][1])


@pytest.mark.parametrize("name", ["index_select", "an index", "embedding"])
def test_an_increment_on_a_gpu_does_not_move_past_an_error_of_the_cpu(name: str) -> None:
    def is_counter(proxy: TensorProxy) -> bool:
        return proxy.shape == () and proxy.dtype is torch.int64

    assert joined_on_gpu(between(name), is_counter) == 2
    assert joined_on_gpu(between("no error"), is_counter) == 1


def test_deterministic_algorithms_raise_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = between("index_copy_")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert joined_on_gpu(trace) == 2
