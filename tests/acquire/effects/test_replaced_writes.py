"""Writes that replace, restore or repeat earlier writes: the epilogue leaves objects as eager PyTorch does."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning

X = torch.ones(2)


class Doubled(list[int]):
    """A list whose iteration yields each item twice."""

    def __iter__(self) -> Any:
        """Yield each stored item twice."""
        for item in list.__iter__(self):
            yield from (item, item)


class Named(dict[str, int]):
    """A mapping without stored items, in which each name has its length as the value."""

    def __missing__(self, name: str) -> int:
        """Return the factor, which is an item, or the length of the name."""
        return self["factor"] if "factor" in self else len(name)


def set_twice(x: torch.Tensor, space: Any) -> torch.Tensor:
    space.a, space.b = 1, 2
    space.a = 3
    return x * space.a


def set_item_twice(x: torch.Tensor, items: dict[str, int]) -> torch.Tensor:
    items["a"], items["b"] = 1, 2
    items["a"] = 3
    return x * items["a"]


def restore_constant(x: torch.Tensor, items: dict[str, int]) -> torch.Tensor:
    items["a"] = 6
    items["a"] = 5
    return x


def extend_by_override(x: torch.Tensor, items: list[int]) -> torch.Tensor:
    items.extend(Doubled([1, 2]))
    items[:1] = Doubled([3])
    items += Doubled([4])
    return x * len(items)


def set_attribute_of_member(x: torch.Tensor, kind: Any) -> torch.Tensor:
    kind.ON.count = getattr(kind.ON, "count", 0) + 1
    return x * kind.ON.count


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "attributes keep their order": (set_twice, types.SimpleNamespace, lambda space: vars(space).clear(), repr),
    "items keep their order": (set_item_twice, lambda: {"a": 0}, lambda items: items.clear(), repr),
    "an item gets its first value again": (restore_constant, lambda: {"a": 5}, lambda items: items.update(a=7), repr),
    "a list with its own iteration": (extend_by_override, lambda: [0], lambda items: items.append(4), repr),
    "an attribute of a member of an enumeration": (
        set_attribute_of_member,
        lambda: enum.Enum("Fresh", {"ON": 1}),
        lambda kind: setattr(kind.ON, "count", 5),
        lambda kind: kind.ON.count,
    ),
    "a missing key": (
        lambda x, items: x * items["width"],
        Named,
        lambda items: items.update(factor=3),
        repr,
    ),
    "a set that is read and changed": (
        lambda x, items: (items.discard(2), items.symmetric_difference_update({9}), x * len(items)),
        lambda: {1, 2, 3},
        lambda items: items.add(2),
        sorted,
    ),
}


@pytest.mark.parametrize(("program", "make", "change", "state"), PROGRAMS.values(), ids=PROGRAMS)
def test_state_is_as_in_eager(
    program: Callable[..., Any], make: Callable[[], Any], change: Callable[[Any], Any], state: Callable[[Any], Any]
) -> None:
    """Each call returns the same result and leaves the same state, also after a change between calls."""
    seen = []
    for function in (program, thunder.jit(program)):
        subject = make()
        seen.append([])
        for mutate in (None, change, None, change):
            if mutate is not None:
                mutate(subject)
            seen[-1].append((repr(function(X, subject)), state(subject)))
    assert seen[1] == seen[0]


def test_function_that_writes_while_a_list_is_sorted_runs_once() -> None:
    """A key function that writes to outside objects is not run again by the epilogue: the call runs in eager."""
    items, calls = [3, 1, 2], list[int]()

    def key(item: int) -> int:
        calls.append(item)
        return item

    def program(x: torch.Tensor) -> torch.Tensor:
        items.sort(key=key)
        return x * items[0]

    with pytest.warns(RecompileWarning):
        thunder.jit(program)(X)
    assert (items, calls) == ([1, 2, 3], [3, 1, 2])


def test_pop_of_a_set_with_several_members_runs_in_eager() -> None:
    """Which member is popped depends on the history of the set, which no guard checks."""
    items = {8, 16}
    with pytest.warns(RecompileWarning):
        popped = thunder.jit(lambda x: items.pop())(X)
    assert items == {8, 16} - {popped}


def test_repeated_call_restores_a_sparse_tensor() -> None:
    """A sparse tensor that a refused computation has written to is restored before the call is repeated."""
    results = []
    for compile_ in (lambda function: function, thunder.jit):
        weight = torch.eye(2).to_sparse()

        def program(x: torch.Tensor, weight: torch.Tensor = weight) -> torch.Tensor:
            weight.mul_(2)
            return x * 100 if weight.sum().item() > 7 else x * 2

        function = compile_(program)
        results.append([(function(X).tolist(), weight.to_dense().tolist()) for _ in range(3)])
    assert results[1] == results[0]
