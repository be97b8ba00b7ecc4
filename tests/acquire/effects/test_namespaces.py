"""Namespaces of `exec` and `eval`, and attributes of each thread: writes are undone after tracing, and replayed."""

from __future__ import annotations

import collections
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder

X = torch.ones(2)
Program = Callable[[torch.Tensor], Any]


def executed() -> tuple[Program, Callable[[], Any]]:
    names: dict[str, Any] = {"k": 2}

    def program(x: torch.Tensor) -> torch.Tensor:
        exec("k = k + 1", names)
        return x * eval("k * 2", names)  # type: ignore[no-any-return]

    return program, lambda: (names["k"], sorted(names), "print" in names["__builtins__"])


def of_thread() -> tuple[Program, Callable[[], Any]]:
    class Local(threading.local):
        depth = 0

        def __init__(self) -> None:
            self.stack: list[int] = []

    own, plain = Local(), threading.local()

    def program(x: torch.Tensor) -> torch.Tensor:
        own.depth += 1
        own.stack.append(own.depth)
        plain.calls = getattr(plain, "calls", 0) + 2
        if hasattr(plain, "flag"):
            del plain.flag
        else:
            plain.flag = True
        return x * own.depth * plain.calls * len(own.stack)

    return program, lambda: (own.depth, own.stack, vars(plain))


def without_own_locals() -> tuple[Program, Callable[[], Any]]:
    names: dict[str, Any] = {"k": 2}
    function = types.FunctionType(compile("k = k + 1", "<names>", "exec"), names)

    def program(x: torch.Tensor) -> torch.Tensor:
        function()
        return x * names["k"]

    return program, lambda: names["k"]


def with_own_locals() -> tuple[Program, Callable[[], Any]]:
    counts = {"k": 2}

    def program(x: torch.Tensor) -> torch.Tensor:
        exec("k = k + 1", {}, counts)
        return x * eval("k * 2", {}, counts)  # type: ignore[no-any-return]

    return program, lambda: counts["k"]


@pytest.mark.parametrize("case", [executed, of_thread, without_own_locals, with_own_locals])
def test_writes_match_eager(case: Callable[[], tuple[Program, Callable[[], Any]]]) -> None:
    (ours, state), (eagers, eager_state) = case(), case()
    compiled = thunder.jit(ours)
    for _ in range(5):
        assert torch.equal(compiled(X), eagers(X))
        assert state() == eager_state()


class Refuses(dict[str, Any]):
    """Globals that have names and refuse to return them."""

    def __getitem__(self, name: str) -> Any:
        raise LookupError(name)


def test_names_of_globals_of_a_subclass_are_read_by_its_own_method() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            exec("k", Refuses(k=1))
        except LookupError:
            return x * 3
        return x * 2

    torch.testing.assert_close(thunder.jit(program, executors=("torch",))(torch.ones(2)), torch.full((2,), 3.0))


class Namespace(dict):  # type: ignore[type-arg]
    """A dict with a method of its own."""

    def __setitem__(self, name: str, value: Any) -> None:
        dict.__setitem__(self, name.upper(), value)


@pytest.mark.parametrize("kind", [dict, collections.Counter, Namespace])
def test_exec_in_a_namespace_from_outside_stores_the_builtins_there(kind: type) -> None:
    ours, eagers = kind(), kind()

    def program(x: torch.Tensor, namespace: Any) -> torch.Tensor:
        exec("y = 3\nglobal z\nz = 4", namespace)
        return x * sum(value for name, value in dict.items(namespace) if name != "__builtins__")

    compiled = thunder.jit(program)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2), ours), program(torch.ones(2), eagers))
        assert list(ours) == list(eagers)
    assert thunder.cache_misses(compiled) == 2
