"""Functions that lookups and writes call, such as `__hash__`, have their effects once a call, as in eager PyTorch."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

Setup = Callable[[list[Any]], Callable[[Tensor], Any]]


def key_class(log: list[Any]) -> type:
    class Key:
        def __hash__(self) -> int:
            log.append("hash")
            return 3

        def __eq__(self, other: object) -> bool:
            return type(other) is Key

        def __index__(self) -> int:
            log.append("index")
            return 0

    return Key


def stored_key(log: list[Any]) -> Callable[[Tensor], Any]:
    table: dict[Any, int] = {}
    key = key_class(log)

    def program(x: Tensor) -> Tensor:
        table[key()] = 2
        return x * len(table)

    return program


def looked_up_key(log: list[Any]) -> Callable[[Tensor], Any]:
    key = key_class(log)
    table = {key(): 2}
    log.clear()
    return lambda x: x * table[key()]


def key_from_outside(log: list[Any]) -> Callable[[Tensor], Any]:
    key = key_class(log)()
    table = {key: 2}
    log.clear()
    return lambda x: x * table[key] * (key in table)


def index_of_a_write(log: list[Any]) -> Callable[[Tensor], Any]:
    index, items = key_class(log)(), [1, 2]

    def program(x: Tensor) -> Tensor:
        items[index] = 5
        return x

    return program


def empty_slot(log: list[Any]) -> Callable[[Tensor], Any]:
    class Slots:
        __slots__ = ("a", "b")

        def __getattr__(self, name: str) -> int:
            log.append(name)
            if name == "a":
                return 5
            raise AttributeError(name)

    owner = Slots()
    return lambda x: x * owner.a * getattr(owner, "b", len(log))


def getattribute(log: list[Any]) -> Callable[[Tensor], Any]:
    class Logged:
        def __init__(self) -> None:
            self.a = types.SimpleNamespace(b=3)

        def __getattribute__(self, name: str) -> Any:
            log.append(name)
            return object.__getattribute__(self, name)

    owner = Logged()
    log.clear()
    return lambda x: x * owner.a.b


def module_getattr(log: list[Any]) -> Callable[[Tensor], Any]:
    module = types.ModuleType("module")

    def fallback(name: str) -> int:
        log.append(name)
        return 5

    module.__getattr__ = fallback  # type: ignore[method-assign]
    return lambda x: x * module.a


SETUPS: tuple[Setup, ...] = (
    *(stored_key, looked_up_key, key_from_outside, index_of_a_write, empty_slot, getattribute, module_getattr),
)


def item_class(log: list[Any]) -> Any:
    class Item:
        """An object that equals its number, and counts and logs its comparisons."""

        comparisons = 0

        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            return hash(self.number)

        def __eq__(self, other: object) -> bool:
            log.append(self.number)
            self.comparisons += 1
            return self.number == (other.number if type(other) is Item else other)

    return Item


COMPARISONS: dict[str, Callable[[Any], Any]] = {
    "a member of a set": lambda c: 1 in c.members,
    "a member of a frozen set": lambda c: 1 in frozenset(c.members),
    "a key": lambda c: 1 in c.table,
    "an item": lambda c: c.table[1] + c.table.get(2),
    "an item of a new dict": lambda c: {c.item(1): 5}[1],
    "a key in a tuple": lambda c: (1, "a") in c.pairs,
    "a write of an item": lambda c: c.table.__setitem__(1, 3),
    "a default": lambda c: c.table.setdefault(1, 3),
    "an added member": lambda c: c.members.add(1),
    "a discarded member": lambda c: c.members.discard(1),
    "an update": lambda c: c.table.update({1: 3}),
    "a union": lambda c: len(c.members | {1, 2}),
    "a list": lambda c: (2 in c.items) + c.items.index(2) + c.items.count(1),
    "equal lists": lambda c: c.items == [1, 2],
    "a removed item": lambda c: c.items.remove(2),
    "a weak member": lambda c: c.first in c.weak_members,
    "an equal weak member": lambda c: c.item(2) in c.weak_members,
    "an added weak member": lambda c: c.weak_members.add(c.equal),
    "an item of a weak key": lambda c: c.weak_table[c.equal],
}


def compares(log: list[Any], comparison: Callable[[Any], Any]) -> Callable[[Tensor], Any]:
    item = item_class(log)
    first, second = item(1), item(2)
    pairs, weak = {(first, "a")}, weakref.WeakSet([first, second])
    table, weak_table = {first: 1, second: 2}, weakref.WeakKeyDictionary({first: 4})
    collections = types.SimpleNamespace(item=item, first=first, equal=item(1), items=[first, second])
    collections.members, collections.weak_members = {first, second}, weak
    collections.table, collections.pairs, collections.weak_table = table, pairs, weak_table
    log.clear()

    def program(x: Tensor) -> Any:
        value = comparison(collections)
        log.append(first.comparisons)
        return x + 1, value, len(collections.members), len(collections.weak_members)

    return program


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize("name", COMPARISONS)
def test_effects_of_comparisons_match_eager(name: str) -> None:
    logs: list[list[Any]] = [[], []]
    eager, compiled = compares(logs[0], COMPARISONS[name]), thunder.jit(compares(logs[1], COMPARISONS[name]))
    for _ in range(3):
        outcomes = []
        for run in (compiled, eager):
            try:
                outcomes.append([item.tolist() if isinstance(item, Tensor) else item for item in run(torch.ones(2))])
            except ValueError as error:
                outcomes.append([str(error)])
        assert outcomes[0] == outcomes[1]
        assert logs[0] == logs[1]


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.__name__)
def test_effects_of_hooks_match_eager(setup: Setup) -> None:
    logs: list[list[Any]] = [[], []]
    eager, compiled = setup(logs[0]), thunder.jit(setup(logs[1]))
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), eager(torch.ones(2)))
        assert logs[0] == logs[1]
