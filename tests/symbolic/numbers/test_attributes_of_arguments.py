"""Numbers and tensors in attributes of arguments are symbolic from the first call on if all values are symbolic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder_core as thunder


@dataclass
class Plain:
    """A plain dataclass."""

    scale: float
    count: int


@dataclass(frozen=True)
class Frozen:
    """A frozen dataclass."""

    scale: float
    count: int


@dataclass(slots=True)
class Slotted:
    """A dataclass with slots."""

    scale: float
    count: int


class Behind:
    """An object whose property and method read its attributes."""

    def __init__(self, scale: float, count: int) -> None:
        self._scale, self.inner = scale, SimpleNamespace(count=count)

    @property
    def scale(self) -> float:
        return self._scale

    @property
    def count(self) -> int:
        return int(self.inner.count)


def namespace(scale: float, count: int) -> SimpleNamespace:
    return SimpleNamespace(scale=scale, count=count)


def computed(x: torch.Tensor, held: Any) -> torch.Tensor:
    return x * held.scale + held.count


def sized(x: torch.Tensor, held: Any) -> torch.Tensor:
    return torch.zeros(held.count, x.shape[1]) + x.sum() * held.scale


def written(x: torch.Tensor, held: Any) -> torch.Tensor:
    held.seen = held.count + 1
    return x * held.seen


def nested(x: torch.Tensor, held: Any) -> torch.Tensor:
    pair = {"items": [held]}
    return x * pair["items"][0].scale + held.count


KINDS: tuple[Callable[[float, int], Any], ...] = (Plain, Frozen, Slotted, Behind, namespace)
PROGRAMS = (computed, sized, nested)


def misses(function: Any, compiled: Any, make: Callable[[float, int], Any]) -> int:
    for step in range(1, 5):
        x = torch.randn(2, step + 3)
        mine, theirs = make(1.5 * step, step + 2), make(1.5 * step, step + 2)
        torch.testing.assert_close(compiled(x, mine), function(x, theirs))
        assert getattr(mine, "seen", None) == getattr(theirs, "seen", None)
    return thunder.cache_misses(compiled)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_all_numbers_that_an_object_holds_share_one_program(kind: Callable[[float, int], Any]) -> None:
    for function in PROGRAMS:
        assert misses(function, thunder.jit(function, cache="symbolic values"), kind) == 1


def test_written_number_is_computed_from_the_number_that_is_read() -> None:
    assert misses(written, thunder.jit(written, cache="symbolic values"), namespace) == 1


def test_sizes_of_tensors_that_an_object_holds_are_symbolic() -> None:
    def reduced(held: Any) -> torch.Tensor:
        return held.keys.softmax(-1).sum(0) * held.keys.shape[0]

    compiled = thunder.jit(reduced, cache="symbolic values")
    for step in range(2, 5):
        held = SimpleNamespace(keys=torch.randn(step, 2 * step))
        torch.testing.assert_close(compiled(held), reduced(held))
    assert thunder.cache_misses(compiled) == 1


def test_branch_on_a_number_of_an_object_is_a_constraint() -> None:
    def chosen(x: torch.Tensor, held: Any) -> torch.Tensor:
        return x * held.scale if held.count > 4 else x + held.count

    compiled = thunder.jit(chosen, cache="symbolic values")
    assert misses(chosen, compiled, Plain) == 2
    (reason,) = thunder.recompile_reasons(compiled)
    assert reason.startswith("args[1].count: required s0 <= 4, needed at ") and reason.endswith(", is 5")


class Scaling(torch.nn.Module):
    """A module with a number attribute."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_numbers_of_a_module_among_the_arguments_are_constant_at_first() -> None:
    def called(x: torch.Tensor, module: Scaling) -> torch.Tensor:
        return module(x)

    compiled = thunder.jit(called, cache="symbolic values")
    for scale in (2.0, 3.0, 4.0):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, Scaling(scale)), x * scale)
    assert thunder.cache_misses(compiled) == 2
    assert thunder.recompile_reasons(compiled) == ["args[1].scale: was 2.0, is 3.0"]
