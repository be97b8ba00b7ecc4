"""Traits: what the parts of a recipe say of each other by name, whoever adds them in whatever order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from thunder_core.foundation.errors import RecipeConflict
from thunder_core.tracing.extension.requirement import Requirement

RELATIONS = ("after", "before", "needs", "excludes")
TRAITS = (*RELATIONS, "provides")


class Part(Protocol):
    """A part of a recipe: a transform, an executor, a plug-in, or a recipe that is added to others.

    Its `labels` are the names by which the traits of others call it, and its `title` the one that messages have.
    """

    @property
    def after(self) -> tuple[str, ...]:
        """The names of parts that it comes after, where they are there."""
        ...

    @property
    def before(self) -> tuple[str, ...]:
        """The names of parts that it comes before, where they are there."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of parts that have to be there."""
        ...

    @property
    def excludes(self) -> tuple[str, ...]:
        """The names of parts that it cannot stand together with."""
        ...

    @property
    def labels(self) -> frozenset[str]:
        """The names by which the traits of others call it."""
        ...

    @property
    def title(self) -> str:
        """The name by which messages call it."""
        ...


class Traits:
    """The traits of a part as its class declares them.

    Parts are called by their names (a transform also by its class), or by a word that some `provides`. One comes
    `after` some and `before` others, where they are there; it `needs` some, and `excludes` others. `requirements` are
    what it wants of the machine.
    """

    after: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    excludes: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ()
    requirements: ClassVar[tuple[Requirement, ...]] = ()


def called(name: str, parts: Iterable[Part]) -> list[Part]:
    """The parts that a name calls."""
    return [part for part in parts if name in part.labels]


def require_compatible(parts: Sequence[Part]) -> None:
    """Raise `RecipeConflict` where a part excludes another one, or needs one that is not there."""
    for part in parts:
        for name in part.excludes:
            for other in called(name, parts):
                if other is not part:
                    raise conflict(part, other, f"{part.title} excludes {other.title}")
        for name in part.needs:
            if not called(name, parts):
                raise RecipeConflict(
                    f"{part.title} needs {name}, which is not among the parts of the recipe",
                    fix=f"add {name}, or leave out {part.title}",
                )


def conflict(party: Part, other: Part, what: str) -> RecipeConflict:
    """The error for two parts that cannot stand together."""
    return RecipeConflict(what, fix=f"leave out {party.title} or {other.title}")
