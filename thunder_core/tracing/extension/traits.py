"""Traits: relations between the parts of a recipe, by name. The order in which parts are added has no effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from thunder_core.foundation.errors import RecipeConflict
from thunder_core.tracing.extension.requirement import Requirement

RELATIONS = ("after", "before", "needs", "excludes")
TRAITS = (*RELATIONS, "provides")


class Part(Protocol):
    """A part of a recipe: a transform, an executor, a plug-in, or a recipe that is added to others.

    `labels` are the names that traits of other parts may use for it, and `title` is its name in messages.
    """

    @property
    def after(self) -> tuple[str, ...]:
        """The names of the parts after which this part comes, if they are present."""
        ...

    @property
    def before(self) -> tuple[str, ...]:
        """The names of the parts before which this part comes, if they are present."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the parts that must be present."""
        ...

    @property
    def excludes(self) -> tuple[str, ...]:
        """The names of the parts that must not be present."""
        ...

    @property
    def labels(self) -> frozenset[str]:
        """The names that traits of other parts may use for this part."""
        ...

    @property
    def title(self) -> str:
        """The name of the part in messages."""
        ...


class Traits:
    """The traits of a part, declared by its class.

    A trait refers to a part by its name or by a name in the part's `provides`, and to a transform also by the name of
    its class. A part comes after the parts in `after` and before the parts in `before`, if these are present. The parts
    in `needs` must be present, and the parts in `excludes` must not be present. `requirements` are the part's
    requirements on the machine.
    """

    after: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    excludes: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ()
    requirements: ClassVar[tuple[Requirement, ...]] = ()


def parts_with_name(name: str, parts: Iterable[Part]) -> list[Part]:
    """Return the parts that a name refers to."""
    return [part for part in parts if name in part.labels]


def require_compatible(parts: Sequence[Part]) -> None:
    """Raise `RecipeConflict` if a part excludes another part, or needs a part that is not present."""
    for part in parts:
        for name in part.excludes:
            for excluded_part in parts_with_name(name, parts):
                if excluded_part is not part:
                    raise conflict(part, excluded_part, f"{part.title} excludes {excluded_part.title}")
        for name in part.needs:
            if not parts_with_name(name, parts):
                raise RecipeConflict(
                    f"{part.title} needs {name}, which is not among the parts of the recipe",
                    fix=f"add {name}, or leave out {part.title}",
                )


def conflict(party: Part, other: Part, what: str) -> RecipeConflict:
    """Return the error for two parts that exclude each other."""
    return RecipeConflict(what, fix=f"leave out {party.title} or {other.title}")
