"""Writes by C methods that Python code calls by name: slots of C classes, `__init__`, and methods of exceptions."""

from __future__ import annotations

import functools
import operator
import threading
import types
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder

X = torch.ones(2)
Case = tuple[Any, Callable[[Any], object]]


def doubling(base: Any, *args: Any) -> Any:
    """Return an object of a subclass whose `__setattr__` stores twice the value by the slot of its C class."""

    class Doubling(base):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value * 2)

        def __delattr__(self, name: str) -> None:
            super().__delattr__(name)

    owner = Doubling(*args)
    owner.count = 1
    return owner


OWNERS = {
    "exception": lambda: doubling(ValueError),
    "namespace": lambda: doubling(types.SimpleNamespace),
    "local": lambda: doubling(threading.local),
    "partial": lambda: doubling(functools.partial, len),
    "module": lambda: doubling(types.ModuleType, "doubling"),
    "dict": lambda: doubling(dict),
    "deque": lambda: doubling(deque),
}


def counts(owner: Any, x: torch.Tensor) -> torch.Tensor:
    owner.count = owner.count + 1
    owner.other = 1
    del owner.other
    return x * owner.count


def observe(function: Callable[..., Any], make: Callable[[], Any]) -> list[Any]:
    """Call a function three times; return the results and the attributes after each call."""
    owner, observed = make(), []
    for _ in range(3):
        observed += [function(owner, X).tolist(), dict(vars(owner))]
    return observed


@pytest.mark.parametrize("kind", OWNERS)
def test_slots_of_c_classes_write_at_each_call(kind: str) -> None:
    assert observe(thunder.jit(counts), OWNERS[kind]) == observe(counts, OWNERS[kind])


class Listed(type):
    """A metaclass whose classes return a new list for each attribute."""

    def __getattribute__(cls, name: str) -> Any:
        value = super().__getattribute__(name)
        return [value] if name == "factor" else value


def test_slot_of_type_reads_class_attribute() -> None:
    class Base:
        factor = 1

    class Derived(Base, metaclass=Listed):
        pass

    compiled = thunder.jit(lambda x: x * Derived.factor[0])  # type: ignore[index]
    assert compiled(X).tolist() == [1, 1]
    Base.factor = 3
    assert compiled(X).tolist() == [3, 3]
    Derived.factor = 5
    assert compiled(X).tolist() == [5, 5]


@pytest.mark.parametrize("base", [object, dict, list, types.SimpleNamespace, Exception, threading.local])
def test_slot_of_class_reads_attribute(base: Any) -> None:
    class Boxed(base):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            return [value] if name == "factor" else value

    owner = Boxed()
    compiled = thunder.jit(lambda x: x * owner.factor[0])
    for owner.factor in (1, 3, 5):
        assert compiled(X).tolist() == [owner.factor[0]] * 2


def joined(items: list[int]) -> None:
    operator.iconcat(items, [2])


def reduced(items: list[int]) -> None:
    functools.reduce(operator.iconcat, [[2], [3]], items)


def initialized(items: list[int]) -> None:
    list.__init__(items, [len(items)])


def factory_called(table: defaultdict[str, list[int]]) -> None:
    table.__missing__("a").append(1)


def noted(error: Exception) -> None:
    error.add_note(f"note {len(getattr(error, '__notes__', ()))}")


def caused(error: Exception) -> None:
    try:
        raise error from KeyError("cause")
    except ValueError:
        pass


def arguments_set(error: Exception) -> None:
    error.__init__("other", len(error.args))  # type: ignore[misc]


def partial_changed(part: Any) -> None:
    part.__setstate__((part.func, (), {"base": part.keywords["base"] + 1}, None))


WRITES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "iconcat": (lambda: [1], joined),
    "reduce": (lambda: [1], reduced),
    "list.__init__": (lambda: [1, 2, 3], initialized),
    "__missing__": (lambda: defaultdict(list), factory_called),
    "add_note": (lambda: ValueError("a"), noted),
    "raise from": (lambda: ValueError("a"), caused),
    "exception.__init__": (lambda: ValueError("a"), arguments_set),
    "partial.__setstate__": (lambda: functools.partial(int, base=3), partial_changed),
}


def state(owner: Any) -> str:
    """Return the state of an object as text, also of an exception or a partial."""
    if not isinstance(owner, BaseException):
        return repr(owner)
    return repr((owner, vars(owner), owner.__cause__, owner.__suppress_context__))


@pytest.mark.parametrize("kind", WRITES)
def test_c_function_writes_at_each_call(kind: str) -> None:
    make, write = WRITES[kind]

    def program(owner: Any, x: torch.Tensor) -> torch.Tensor:
        write(owner)
        return x + 1

    def states(function: Callable[..., Any]) -> list[str]:
        owner, found = make(), []
        for _ in range(3):
            function(owner, X)
            found.append(state(owner))
            if isinstance(owner, BaseException):
                owner.__cause__, owner.__suppress_context__ = None, False
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert states(thunder.jit(program)) == states(program)
