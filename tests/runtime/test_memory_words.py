"""Words of memory that tell whether objects have changed: each way to change a dict or a class changes them."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from thunder_core.tracing.library.changes.memory_words import (
    CAN_WATCH,
    DICT_VERSION_OFFSET,
    LOWEST_ADDRESS,
    MEMORY,
    WORD,
    Words,
    address_of,
    dict_pointer_address,
)

pytestmark = pytest.mark.skipif(not CAN_WATCH, reason="the versions of dicts are not known in this Python")
REPEATED = 60  # often enough that CPython specializes the bytecode of a change


class Plain:
    def __init__(self) -> None:
        self.number = 0
        self.text = ""

    def assign(self, value: int) -> None:
        self.number = value

    def delete_and_assign(self, value: int) -> None:
        del self.text
        self.text = str(value)


class Crowded(Plain):
    """A class whose instances have more attributes than share one table of keys."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(64):
            setattr(self, f"attribute_{number}", number)


def assign_item(owner: Any, value: int) -> None:
    owner.__dict__["number"] = value


def add_to_item(owner: Any, value: int) -> None:
    owner.__dict__["number"] += value + 1


def refill(owner: Any, value: int) -> None:
    items = dict(owner.__dict__, number=value)
    owner.__dict__.clear()
    owner.__dict__.update(items)


def reorder(owner: Any, value: int) -> None:
    owner.__dict__["number"] = owner.__dict__.pop("number")


CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "attribute": lambda owner, value: owner.assign(value + 1),
    "deleted and assigned": lambda owner, value: owner.delete_and_assign(value),
    "setattr": lambda owner, value: setattr(owner, "number", value + 1),
    "object.__setattr__": lambda owner, value: object.__setattr__(owner, "number", value + 1),
    "new attribute": lambda owner, value: setattr(owner, f"new_{value}", value),
    "item": lambda owner, value: assign_item(owner, value + 1),
    "item in place": add_to_item,
    "update": lambda owner, value: owner.__dict__.update(number=value + 1),
    "update by pairs": lambda owner, value: owner.__dict__.update([("number", value + 1)]),
    "merge": lambda owner, value: owner.__dict__.__ior__({"number": value + 1}),
    "setdefault": lambda owner, value: owner.__dict__.setdefault(f"default_{value}", value),
    "emptied and filled": refill,
    "another order": reorder,
    "dict.__setitem__": lambda owner, value: dict.__setitem__(owner.__dict__, "number", value + 1),
    "setstate": lambda owner, value: owner.__dict__.update(pickle.loads(pickle.dumps({"number": value + 1}))),
}


@pytest.mark.parametrize("kind", [Plain, Crowded])
@pytest.mark.parametrize("read_early", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_attributes_is_seen(change: str, kind: type[Plain], read_early: bool) -> None:
    owner = kind()
    if not read_early:
        for value in range(REPEATED):
            owner.assign(value)
    namespace = owner.__dict__
    assert dict_pointer_address(owner, namespace) is not None
    for value in range(1000, 1000 + REPEATED):
        words = Words([address_of(namespace) + DICT_VERSION_OFFSET])
        assert words.are_unchanged()
        CHANGES[change](owner, value)
        assert not words.are_unchanged()


@pytest.mark.parametrize(
    "change",
    [
        lambda hooks: hooks.update(a=1),
        lambda hooks: hooks.__setitem__("b", 1),
        lambda hooks: OrderedDict.__setitem__(hooks, "c", 1),
        lambda hooks: dict.__setitem__(hooks, "d", 1),
        lambda hooks: hooks.setdefault("e", 1),
    ],
)
def test_each_item_of_an_ordered_dict_is_seen(change: Callable[[Any], Any]) -> None:
    hooks: OrderedDict[str, int] = OrderedDict()
    words = Words([address_of(hooks) + DICT_VERSION_OFFSET])
    change(hooks)
    assert not words.are_unchanged()


def test_reads_and_copies_change_nothing() -> None:
    owner = Crowded()
    words = Words([address_of(owner.__dict__) + DICT_VERSION_OFFSET])
    for _ in range(REPEATED):
        assert owner.number == vars(owner)["number"] == owner.__dict__.get("number")
        assert copy.copy(owner).text == pickle.loads(pickle.dumps(owner)).text
        assert [*owner.__dict__.items()]
    assert words.are_unchanged()


def test_a_replaced_namespace_has_another_address() -> None:
    owner = Plain()
    namespace = owner.__dict__
    pointer = dict_pointer_address(owner, namespace)
    assert pointer is not None
    words = Words([pointer])
    owner.__dict__ = dict(namespace)
    assert not words.are_unchanged()
    assert dict_pointer_address(owner, namespace) is None


@pytest.mark.parametrize("address", [0x7FFF_FFFF_F000, 0xFFFF_9B3F_0000], ids=["x86-64", "64-bit ARM"])
def test_user_addresses_of_each_architecture_have_an_index(address: int) -> None:
    assert (address - LOWEST_ADDRESS) // WORD < len(MEMORY)
