"""Containers whose class overrides methods: C code reads the stored items, so tracing calls no method of the class."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder

X = torch.arange(3.0)


def after_first(first: Any, *rest: Any) -> tuple[Any, ...]:
    return first * 2, rest


SEQUENCE: dict[str, Callable[[Any], Any]] = {
    "a truth value": lambda items: X + 1 if items is not None else X,
    "an item": lambda items: items[0] * 2,
    "the last item": lambda items: items[-1],
    "a length": len,
    "a loop": lambda items: [item for item in items],  # noqa: C416 (the bytecode of a loop)
    "unpacking": lambda items: after_first(*items),
    "a display": lambda items: [*items, 1],
    "tuple": tuple,
    "a member": lambda items: 2 in items,
    "a sum": lambda items: torch.stack([items[0], items[0]]).sum(0),
    "an attribute": lambda items: getattr(items, "missing", 3),
    "the class": lambda items: type(items).__name__,
    "a part of a result": lambda items: (items, X + 1),
}
MAPPING: dict[str, Callable[[Any], Any]] = {
    "an item": lambda items: items["a"] * 2,
    "get": lambda items: items.get("b"),
    "keys": lambda items: list(items.keys()),
    "items": lambda items: [(key, value) for key, value in items.items()],
    "keywords": lambda items: dict(**items),
    "a display": lambda items: {**items, "c": 1},
    "a union": lambda items: {} | items,
    "a length": len,
    "a part of a result": lambda items: (items, X + 1),
}
SET: dict[str, Callable[[Any], Any]] = {
    "a member": lambda items: 1 in items,
    "a loop": lambda items: sorted(items),
    "a length": len,
}
KINDS: dict[type, tuple[Any, dict[str, Callable[[Any], Any]]]] = {
    tuple: ((X, 2, 3), SEQUENCE),
    list: ([X, 2, 3], SEQUENCE),
    deque: ([X, 2, 3], SEQUENCE),
    dict: ({"a": X, "b": 2}, MAPPING),
    OrderedDict: ({"a": X, "b": 2}, MAPPING),
    set: ({1, 2}, SET),
}
SPECIAL = ("__len__", "__iter__", "__getitem__", "__contains__", "__eq__", "__getattribute__")
OVERRIDDEN = [(base, name) for base in (tuple, list, deque, dict, OrderedDict, set) for name in SPECIAL]
OVERRIDDEN += [(dict, "keys"), (dict, "items")]


class OverrideError(Exception):
    """Raised by each overridden method."""


def overridden(base: type, name: str, calls: list[str], *, raises: bool) -> type:
    """Return a subclass of a container whose method raises, or returns other items than the class stores."""

    def method(self, *args):
        calls.append(name)
        if raises:
            raise OverrideError(name)
        value = getattr(base, name)(self, *args)
        changed = {"__len__": lambda: value + 1, "__iter__": lambda: reversed(list(value)), "__eq__": lambda: not value}
        return changed[name]() if name in changed else value

    return type("Kept", (base,), {name: method})


def outcome(function: Callable[[Any], Any], container: Any, calls: list[str]) -> tuple[Any, ...]:
    """Return the result or the error of a call as text, and the overridden methods that it called."""
    calls.clear()
    try:
        value = function(container)
    except Exception as error:
        return type(error), str(error), tuple(calls)
    called = tuple(calls)
    return type(value), str(value[1] if type(value) is tuple and value[0] is container else value), called


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "changes"])
@pytest.mark.parametrize(("base", "name"), [pair for pair in OVERRIDDEN if hasattr(*pair)])
def test_overridden_methods_run_as_in_eager(base, name, raises):
    contents, functions = KINDS[base]
    for read, function in functions.items():
        calls: list[str] = []
        kind = overridden(base, name, calls, raises=raises)
        expected = outcome(function, kind(contents), calls)
        for compiled in (thunder.jit(function), thunder.jit(lambda items, function=function: function(items))):
            container = kind(contents)
            seen = [outcome(compiled, container, calls) for _ in range(2)]
            if name == "__getattribute__" and not raises:  # `isinstance` in the library's checks reads `__class__`
                assert [result[:2] for result in seen] == [expected[:2]] * 2, read
            else:
                assert seen == [expected] * 2, read


def stored(items: Any) -> str:
    """Return the text of the items that a container stores."""
    base = next(base for base in type(items).__mro__ if base.__module__ in ("builtins", "collections"))
    return str(list(base.items(items) if issubclass(base, dict) else base.__iter__(items)))


@pytest.mark.parametrize("base", [tuple, list, deque, dict, set], ids=lambda base: base.__name__)
def test_containers_that_a_program_makes_keep_their_items(base):
    calls: list[str] = []
    kinds = [overridden(base, name, calls, raises=False) for name in ("__iter__", "__len__", "__getitem__", "items")]
    contents = {dict: {"a": 1, "b": 2}, set: {1, 2}}.get(base, (1, 2))

    def program(x):
        return [kind(contents) for kind in kinds], x + 1

    compiled = thunder.jit(program)
    expected = [stored(items) for items in program(X)[0]]
    assert [[stored(items) for items in compiled(X)[0]] for _ in range(2)] == [expected] * 2


def test_items_behind_a_getitem_of_a_deque_are_guarded():
    class Doubled(deque):
        def __getitem__(self, index):
            return super().__getitem__(index) * 2

    items = Doubled([X, 3])
    compiled = thunder.jit(lambda x: x * items[1])
    assert torch.equal(compiled(X), X * 6)
    items.pop()
    items.append(4)
    assert torch.equal(compiled(X), X * 8)


def test_tuple_with_its_own_length():
    """Like the irreducible representations of e3nn, which have no length."""

    class Pair(tuple):
        __slots__ = ()

        def __len__(self):
            raise NotImplementedError

    pair = Pair((2, 3))
    compiled = thunder.jit(lambda x, other: x * pair[1] + other[0])
    assert torch.equal(compiled(X, Pair((5, 1))), X * 3 + 5)


def test_containers_that_contain_themselves_are_arguments():
    items: list[Any] = [X]
    items.append(items)
    table: dict[str, Any] = {"x": X}
    table["table"] = table

    def program(items, table):
        items.append(items[0] * len(items))
        return items[1][1][0] + table["table"]["x"]

    compiled = thunder.jit(program)
    assert all(torch.equal(compiled(items, table), X * 2) for _ in range(2))
    assert [len(items), items[1] is items, items[3].tolist()] == [4, True, (X * 3).tolist()]
