"""Threads that call compiled functions at once: results equal eager's, and one thread traces at a time."""

from __future__ import annotations

import gc
import linecache
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, vmap

import thunder_core as thunder
from thunder_core.backend.runtime import compiled as module_of_calls

LINEAR = nn.Linear(3, 2)


class Counter:
    """A module that counts its calls."""

    def __init__(self) -> None:
        self.n = 0


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls in threads that start together. An error is a result."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        barrier.wait()
        try:
            results[place] = calls[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("cache", ["no caching", "constant values"])
def test_writes_while_tracing_are_invisible_to_other_traces(cache: str) -> None:
    counter = Counter()

    def counted(x: Tensor) -> Tensor:
        counter.n = counter.n + 1
        return (x * 2).relu() + 1

    compiled = thunder.jit(counted, cache=cache)
    inputs = [torch.ones(size) for size in range(2, 6)]
    results = at_once(*(lambda x=x: compiled(x) for x in inputs))  # type: ignore[misc]
    for x, result in zip(inputs, results, strict=True):
        assert torch.equal(result, x * 2 + 1)
    assert counter.n == 4 or (cache == "constant values" and counter.n in (2, 3)), "calls of one program may meet"


def test_concurrent_calls_of_one_kind_compile_one_program() -> None:
    compiled = thunder.jit(lambda x: (x * 3).sin() + 1)
    x = torch.ones(3)
    results = at_once(*[lambda: compiled(x)] * 6)
    assert all(torch.equal(result, (x * 3).sin() + 1) for result in results)
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (1, 5)


def test_gradients_in_many_threads() -> None:
    compiled = thunder.jit(lambda x: ((x * 3).sin() * x).sum())

    def gradient(size: int) -> bool:
        x = torch.ones(size, requires_grad=True)
        y = torch.ones(size, requires_grad=True)
        compiled(x).backward()
        ((y * 3).sin() * y).sum().backward()
        return torch.allclose(x.grad, y.grad)  # type: ignore[arg-type]

    assert at_once(*(lambda size=size: gradient(size) for size in (2, 3, 2, 3))) == [True] * 4  # type: ignore[misc]


def test_programs_may_be_dropped_while_other_threads_search() -> None:
    compiled = thunder.jit(lambda x, n: x * n, max_programs=2)
    x = torch.ones(2)

    def calls(offset: int) -> list[float]:
        return [float(compiled(x, (index + offset) % 4 + 0.5)[0]) for index in range(24)]

    results = at_once(*(lambda offset=offset: calls(offset) for offset in range(3)))  # type: ignore[misc]
    assert results == [[(index + offset) % 4 + 0.5 for index in range(24)] for offset in range(3)]


def test_a_call_is_traced_again_if_another_thread_changed_a_guarded_value(monkeypatch: pytest.MonkeyPatch) -> None:
    counter, attempts = Counter(), []
    compiled = thunder.jit(lambda x: x * counter.n)
    compiler_type = type(compiled._thunder.compiler)
    original = compiler_type.__call__

    def compile_and_write(*arguments: Any) -> Any:
        program = original(*arguments)
        attempts.append(counter.n)
        counter.n += len(attempts) < 3  # like a write by another thread
        return program

    monkeypatch.setattr(compiler_type, "__call__", compile_and_write)
    with monkeypatch.context() as patch:
        patch.setattr(module_of_calls.threading, "active_count", lambda: 2)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert attempts == [0, 1, 2]


def test_source_lines_of_programs_are_freed_with_the_programs() -> None:
    compiled = thunder.jit(lambda x: (x * 2).sin(), cache="no caching")
    x = torch.ones(2)
    counts = []
    gc.collect()  # objects of other tests
    gc.collect()  # and objects that their finalizers release
    for _ in range(3):
        compiled(x)
        gc.collect()
        counts.append(sum(name.startswith("<thunder") for name in linecache.cache))
    assert counts[0] == counts[1] == counts[2]


def test_regions_are_compiled_by_one_thread_at_a_time() -> None:
    functions = [
        lambda x: (x * 1.25 + 3).sin() - 2,
        lambda x: (x - 1.25).exp() * 3 + x.cos(),
        lambda x: (x / 1.25).tanh().relu() + 7,
    ]
    compiled = [thunder.jit(function, executors=("inductor", "torch")) for function in functions]
    x = torch.linspace(0, 1, 7)
    results = at_once(*(lambda one=one: one(x) for one in compiled))  # type: ignore[misc]
    for function, actual, result in zip(functions, compiled, results, strict=True):
        torch.testing.assert_close(result, function(x))
        assert "inductor" in {bsym.executor for bsym in thunder.last_traces(actual)[-1].bound_symbols}


BODIES: list[Callable[[], Any]] = []


@torch.library.custom_op("thunder_tests::in_a_thread", mutates_args=())
def in_a_thread(x: Tensor) -> Tensor:
    """Return twice the tensor, while a thread runs a task that the caller waits for."""
    for body in BODIES:
        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "the thread waits for the one that waits for it"
    return x * 2


@in_a_thread.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_the_first_run_may_wait_for_a_thread_that_compiles() -> None:
    results: list[Tensor] = []
    other, x = thunder.jit(lambda x: x + 3), torch.ones(2)
    BODIES[:] = [lambda: results.append(other(x))]
    try:
        assert torch.equal(thunder.jit(lambda x: in_a_thread(x) + 1)(x), x * 2 + 1)
    finally:
        BODIES.clear()
    assert [result.tolist() for result in results] == [[4, 4]]


def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


def test_other_threads_see_no_symbols_in_the_users_own_objects() -> None:
    sizes, seen, is_over = [2, 3], set[type](), threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            seen.update(map(type, (*sizes, *(scaled.__defaults__ or ()))))

    compiled = thunder.jit(lambda x: scaled(x.new_ones(1).expand(sizes)), cache="symbolic values")
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for n in range(3):
            sizes[:], scaled.__defaults__ = [n + 2, 3], (n + 2.5,)
            assert torch.equal(compiled(torch.ones(1)), torch.full((n + 2, 3), n + 2.5))
    finally:
        is_over.set()
        thread.join()
    assert seen == {int, float}


def transformed(x: Tensor, factor: float) -> Any:
    """Batches, derivatives of both kinds, and a module whose parameters are swapped."""
    parameters = dict(LINEAR.named_parameters())
    loss = vmap(grad(lambda p, row: (functional_call(LINEAR, p, (row,)) * factor).sin().sum()), (None, 0))
    return loss(parameters, x), hessian(lambda row: (row * factor).sin().sum())(x[0])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_eight_threads_that_trace_at_once_give_the_results_of_one() -> None:
    x = torch.linspace(-1, 1, 6).view(2, 3)
    factors = [float(number + 1) for number in range(8)]
    programs = [thunder.jit(transformed) for _ in factors]
    pairs = list(zip(programs, factors, strict=True))
    results = at_once(*(lambda f=f, factor=factor: f(x, factor) for f, factor in pairs))  # type: ignore[misc]
    torch.testing.assert_close(results, [transformed(x, factor) for factor in factors])
    assert [thunder.cache_misses(program) for program in programs] == [1] * 8
