"""Transforms: from trace to trace, with traits that alone decide their order."""

from __future__ import annotations

import graphlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from thunder_core.errors import RecipeConflict
from thunder_core.requirement import Requirement

if TYPE_CHECKING:
    import torch

    from thunder_core.ir.trace import Trace


class Transform(ABC):
    """A step from one computation to another; subclasses are frozen dataclasses whose fields are their options.

    Traits name other transforms by their files: this one comes `after` and `before` those, `excludes` others, and
    `needs` something of the machine.
    """

    after: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[tuple[str, ...]] = ()
    excludes: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[Requirement, ...]] = ()

    @property
    def name(self) -> str:
        """The short name of its file."""
        return type(self).__module__.rpartition(".")[2]

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model that is traced: a transform that changes weights changes them here. By default the same."""
        return model

    @abstractmethod
    def __call__(self, trace: Trace) -> Trace:
        """The new trace; the given one stays as it is."""


def order_transforms(transforms: Iterable[Transform]) -> tuple[Transform, ...]:
    """The transforms in the order that their traits demand, the same whatever order they are given in.

    One that is given twice with the same options counts once. Raises `RecipeConflict`, naming the two parties, where
    one excludes another, two differ in their options only, or each must come before the other.
    """
    named: dict[str, Transform] = {}
    for transform in transforms:
        twin = named.setdefault(transform.name, transform)
        if twin != transform:
            raise _conflict(transform.name, f"{twin} and {transform} are one transform with different options")
    for name, transform in named.items():
        for other in transform.excludes:
            if other in named:
                raise _conflict(name, f"{name} excludes {other}")
    return tuple(named[name] for name in _sorted(named))


def _sorted(named: dict[str, Transform]) -> list[str]:
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter({name: set() for name in named})
    for name, transform in named.items():
        sorter.add(name, *(other for other in transform.after if other in named))
        for other in transform.before:
            if other in named:
                sorter.add(other, name)
    ordered: list[str] = []
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        first, second = error.args[1][:2]
        raise _conflict(first, f"{first} and {second} must each come before the other") from None
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        ordered += ready
        sorter.done(*ready)
    return ordered


def _conflict(name: str, what: str) -> RecipeConflict:
    return RecipeConflict(what, fix=f"leave out {name}, or the other one")
