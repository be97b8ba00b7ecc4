"""Declarations of subclasses of recipes, plug-ins and transforms: nothing is left unread without a word."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadRecipe
from thunder_core.tracing.extension.requirement import Requirement
from thunder_core.tracing.extension.traits import TRAITS

LIKE = 0.8  # how alike a name must be to one that is read, to be taken for a slip of the pen
SETUP = "setup_"
OWN = "begin the names of your own attributes with an underscore"


def vet_class(
    kind: type,
    base: type,
    attributes: Collection[str],
    *,
    others: Mapping[str, str] | None = None,
    but: Collection[str] = (),
) -> None:
    """Raise `BadRecipe` for what a new subclass of `base` declares and nobody reads, `but` what is its own affair.

    `attributes` are those that are read of it; `others` are names that are taken for them, and what was meant.
    """
    read = {name for name in dir(base) if name.startswith(SETUP)}
    for name in declared(kind, base):
        if name.startswith(SETUP) and name not in read:
            raise BadRecipe(
                f"{kind.__name__} defines {name}, which this version of Thunder never calls",
                fix=f"{plugins.meant(name, read)}remove it; Thunder calls: {', '.join(sorted(read)) or 'nothing'}",
            )
        if name in dir(base) or name in but or name.startswith("_"):
            continue
        near = (others or {}).get(name) or next(iter(difflib.get_close_matches(name, attributes, 1, LIKE)), None)
        if near is not None:
            raise BadRecipe(
                f"{kind.__name__} declares {name}, which Thunder does not read", fix=f"did you mean {near}? Else {OWN}"
            )


def declared(kind: type, base: type) -> Iterator[str]:
    """The names that a class, and what it inherits besides `base`, has of its own."""
    for member in kind.__mro__:
        if member not in base.__mro__:  # `issubclass` would ask what an abstract class remembers of its own base
            yield from vars(member)


def options_of(kind: type) -> set[str]:
    """The fields that a class adds, if it is going to be a dataclass: what has an annotation that is no `ClassVar`."""
    annotations: Mapping[str, object] = vars(kind).get("__annotations__", {})
    return {name for name, told in annotations.items() if "ClassVar" not in str(told)}


def require_row(owner: str, name: str, row: object, kinds: tuple[type, ...]) -> None:
    """Raise `BadRecipe` for what is no tuple or list of instances of these kinds."""
    if not isinstance(row, tuple | list):
        raise BadRecipe(
            f"{owner}: {name} is {row!r:.80}, which is a {type(row).__name__}",
            fix=f"make it a tuple: {name} = ({row!r:.80},)",
        )
    require_kinds(owner, name, row, kinds)


def require_kinds(owner: str, name: str, row: Iterable[object], kinds: tuple[type, ...]) -> None:
    """Raise `BadRecipe` for the first of a row that is of none of these kinds."""
    for one in row:
        if isinstance(one, kinds):
            continue
        wanted = " or ".join(f"a {kind.__name__}" for kind in kinds)
        if isinstance(one, type) and issubclass(one, kinds):
            raise BadRecipe(
                f"{owner}: {name} has the class {one.__name__} instead of {wanted}", fix=f"write {one.__name__}()"
            )
        raise BadRecipe(
            f"{owner}: {name} has {one!r:.80}, which is not {wanted}", fix=f"replace it by {wanted}, or leave it out"
        )


def returned(part: object, name: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """The result of a method `setup_...` of a recipe or a plug-in; raises `BadRecipe` for one of another kind."""
    owner, given = type(part).__name__, getattr(part, name)()
    if isinstance(given, str | type) or not isinstance(given, Iterable):
        raise BadRecipe(f"{owner}: {name} returns {given!r:.80}", fix="return a tuple, which may be empty")
    row = tuple(given)
    require_kinds(owner, f"{name}()", row, kinds)
    return row


def require_traits(owner: str, part: object, *others: str) -> None:
    """Raise `BadRecipe` for traits of a part that are no tuples of names, or requirements that are none."""
    for trait in (*TRAITS, *others):
        row = getattr(part, trait)
        if trait == "needs" and isinstance(row, tuple | list) and any(isinstance(one, Requirement) for one in row):
            raise BadRecipe(
                f"{owner}: needs has {row!r:.80}, but it may only name other parts",
                fix="declare requirements of the machine as `requirements`",
            )
        require_row(owner, trait, row, (str,))
    require_row(owner, "requirements", part.requirements, (Requirement,))  # type: ignore[attr-defined]
