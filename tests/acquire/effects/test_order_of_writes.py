"""The order of writes: Python code that a write calls sees the objects as they are at its line."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder

X = torch.ones(2)


class Item:
    """An item that is compared and hashed by its rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __lt__(self, other: Item) -> bool:
        return self.rank < other.rank

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and self.rank == other.rank

    def __hash__(self) -> int:
        return self.rank


class World:
    """The outside objects of a program."""

    def __init__(self) -> None:
        self.first, self.second = Item(3), Item(2)
        self.items: list[Any] = [self.second, self.first]
        self.numbers = [1, 2, 3]
        self.table: dict[Any, int] = {}
        self.settings = {"sign": 1}

    def state(self) -> list[object]:
        """Return the ranks and the order of the items, and whether the table finds the first item."""
        found = [rank for rank in range(4) if Item(rank) in self.table]
        return [[(item is self.first, item.rank) for item in self.items], self.numbers, found]


def sorted_between(world: World) -> None:
    world.first.rank = 1
    world.items.sort()
    world.first.rank = 5


def pushed_between(world: World) -> None:
    world.first.rank = 1
    heapq.heappush(world.items, world.first)
    world.first.rank = 5


def inserted_between(world: World) -> None:
    world.first.rank = 1
    bisect.insort(world.items, world.first)
    world.first.rank = 5


def removed_between(world: World) -> None:
    world.first.rank = 2
    world.items.remove(Item(2))
    world.first.rank = 3


def hashed_between(world: World) -> None:
    world.first.rank = 1
    world.table[world.first] = 1
    world.first.rank = 2


def key_reads_item(world: World) -> None:
    world.settings["sign"] = -1
    world.numbers.sort(key=lambda number: number * world.settings["sign"])
    world.settings["sign"] = 1


def key_reads_variable(world: World) -> None:
    sign = -1
    world.numbers.sort(key=lambda number: number * sign)
    sign = 1


def key_reads_own_object(world: World) -> None:
    item = Item(-1)
    world.numbers.sort(key=lambda number: number * item.rank)
    item.rank = 1


def own_item_changes(world: World) -> None:
    item = Item(1)
    world.items.append(item)
    world.items.sort()
    item.rank = 5


PROGRAMS = [
    *(sorted_between, pushed_between, inserted_between, removed_between, hashed_between),
    *(key_reads_item, key_reads_variable, key_reads_own_object, own_item_changes),
]


@pytest.mark.parametrize("write", PROGRAMS, ids=lambda write: write.__name__)
def test_write_sees_earlier_writes(write: Callable[[World], None]) -> None:
    world = World()

    def program(x: torch.Tensor) -> torch.Tensor:
        write(world)
        return x + len(world.items)

    compiled = thunder.jit(program)
    for _ in range(3):
        world.__init__()  # type: ignore[misc]
        expected, state = program(X), world.state()
        world.__init__()  # type: ignore[misc]
        torch.testing.assert_close(compiled(X), expected)
        assert world.state() == state
