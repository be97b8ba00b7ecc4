"""Transforms: from trace to trace, with traits that alone decide their order."""

from __future__ import annotations

import graphlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from thunder_core import plugins
from thunder_core.errors import RecipeConflict, UnknownName
from thunder_core.extension.declaration import options_of, require_kinds, require_row, vet_class
from thunder_core.extension.requirement import Requirement

if TYPE_CHECKING:
    import torch

    from thunder_core.ir.trace import Trace


ORDER = ("after", "before", "excludes")


class Transform(ABC):
    """A step from one computation to another; subclasses are frozen dataclasses whose fields are their options.

    Traits name other transforms by their files, or by their classes: this one comes `after` some and `before` others,
    `excludes` some, and `needs` something of the machine.
    """

    after: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[tuple[str, ...]] = ()
    excludes: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[Requirement, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Raises `BadRecipe` for what it declares and nobody reads, or declares otherwise than it is read."""
        super().__init_subclass__()
        vet_class(cls, Transform, (*ORDER, "needs", "prepare", "methods"), but=options_of(cls))
        for trait, kinds in (*((trait, (str,)) for trait in ORDER), ("needs", (Requirement,))):
            require_row(cls.__name__, trait, getattr(cls, trait), kinds)

    @property
    def name(self) -> str:
        """The short name of its file."""
        return type(self).__module__.rpartition(".")[2]

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model that is traced: a transform that changes weights changes them here. By default the same."""
        return model

    def methods(self, model: torch.nn.Module) -> Mapping[str, Callable[..., Any]]:  # noqa: ARG002
        """Methods of the compiled module, by name, that are to stand in the place of the model's own. By default none.

        Each is given the module first, and finds the model's own method on the model's class. A module of the compiled
        class with a state of its own has the model's method.
        """
        return {}

    @abstractmethod
    def __call__(self, trace: Trace) -> Trace:
        """The new trace; the given one stays as it is."""


def order_transforms(transforms: Iterable[Transform]) -> tuple[Transform, ...]:
    """The transforms in the order that their traits demand, the same whatever order they are given in.

    One that is given twice with the same options counts once. Raises `RecipeConflict`, naming the two parties, where
    one excludes another, two differ in their options only, or each must come before the other; `UnknownName` for a
    trait that names no transform, and `BadRecipe` for what is none.
    """
    transforms = tuple(transforms)
    require_kinds("transforms", "the row", transforms, (Transform,))
    for transform in transforms:
        require_known(type(transform))
    kinds: dict[type[Transform], Transform] = {}
    for transform in transforms:
        twin = kinds.setdefault(type(transform), transform)
        if twin != transform:
            raise _conflict(transform, f"{twin} and {transform} are one transform with different options")
    given = sorted(kinds.values(), key=lambda transform: (transform.name, type(transform).__name__))
    for transform in given:
        for other in _called(transform.excludes, given):
            raise _conflict(transform, f"{_title(transform)} excludes {_title(other)}")
    return tuple(_sorted(given))


def require_known(kind: type[Transform]) -> None:
    """Raise `UnknownName` for a trait that names no transform: no class that there is, and no file of Thunder's."""
    named = [(trait, name) for trait in ORDER for name in getattr(kind, trait)]
    loaded = {name for inner in subclasses(Transform) for name in (inner.__module__.rpartition(".")[2], inner.__name__)}
    for trait, name in named:
        if name not in loaded and name not in (known := {*loaded, *listed_names()}):
            raise UnknownName(
                f"{kind.__name__}: {trait} names {name!r}, and no transform is called that",
                fix=f"{plugins.meant(name, known)}known: {', '.join(sorted(known))}",
            )


def subclasses(kind: type) -> Iterator[type]:
    """The classes that this process has made of one."""
    found: list[type] = type.__subclasses__(kind)
    for inner in found:
        yield from (inner, *subclasses(inner))


def listed_names() -> Iterator[str]:
    """The names by which traits may call Thunder's own transforms, which are not imported for that."""
    for file, name in plugins.definitions("transforms", Transform.__name__):
        yield from (file, name)


def _called(names: Iterable[str], transforms: Iterable[Transform]) -> list[Transform]:
    """The transforms that a trait names, by file or by class."""
    return [one for one in transforms if {one.name, type(one).__name__} & set(names)]


def _sorted(transforms: list[Transform]) -> list[Transform]:
    """Topologically, and in the given order where the traits leave a choice."""
    before: dict[int, set[int]] = {place: set() for place in range(len(transforms))}
    places = {type(transform): place for place, transform in enumerate(transforms)}
    for place, transform in enumerate(transforms):
        before[place] |= {places[type(other)] for other in _called(transform.after, transforms)}
        for other in _called(transform.before, transforms):
            before[places[type(other)]].add(place)
    sorter = graphlib.TopologicalSorter(before)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        first, second = (transforms[place] for place in error.args[1][:2])
        raise _conflict(first, f"{_title(first)} and {_title(second)} must each come before the other") from None
    ordered: list[Transform] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        ordered += (transforms[place] for place in ready)
        sorter.done(*ready)
    return ordered


def _conflict(party: Transform, what: str) -> RecipeConflict:
    return RecipeConflict(what, fix=f"leave out {_title(party)}, or the other one")


def _title(transform: Transform) -> str:
    return type(transform).__name__
