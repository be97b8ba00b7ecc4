"""Functions that lookups and writes call, such as `__hash__`, have their effects once a call, as in eager PyTorch."""

from __future__ import annotations

import types
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


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.__name__)
def test_effects_of_hooks_match_eager(setup: Setup) -> None:
    logs: list[list[Any]] = [[], []]
    eager, compiled = setup(logs[0]), thunder.jit(setup(logs[1]))
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), eager(torch.ones(2)))
        assert logs[0] == logs[1]
