"""Check the attributes of subclasses of recipes, plug-ins and transforms, so that no attribute is silently ignored."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from thunder_core.foundation.errors import BadRecipe
from thunder_core.foundation.similar_names import did_you_mean
from thunder_core.tracing.extension.requirement import Requirement
from thunder_core.tracing.extension.traits import TRAITS

MIN_SIMILARITY = 0.8  # an unknown name that is at least this similar to a known name counts as misspelled
SETUP = "setup_"
PRIVATE_NAME_ADVICE = "begin the names of your own attributes with an underscore"


def check_attributes(
    kind: type,
    base: type,
    attributes: Collection[str],
    *,
    others: Mapping[str, str] | None = None,
    allowed: Collection[str] = (),
) -> None:
    """Raise `BadRecipe` if a new subclass of `base` declares an attribute that Thunder does not read.

    `attributes` are the names that Thunder reads. `others` maps frequent wrong names to the intended names. Names in
    `allowed` are not checked.
    """
    read = {name for name in dir(base) if name.startswith(SETUP)}
    for name in declared_names(kind, base):
        if name.startswith(SETUP) and name not in read:
            raise BadRecipe(
                f"{kind.__name__} defines {name}, which this version of Thunder never calls",
                fix=f"{did_you_mean(name, read)}remove it; Thunder calls: {', '.join(sorted(read)) or 'nothing'}",
            )
        if name in dir(base) or name in allowed or name.startswith("_"):
            continue
        near = (others or {}).get(name) or next(
            iter(difflib.get_close_matches(name, attributes, 1, MIN_SIMILARITY)), None
        )
        if near is not None:
            raise BadRecipe(
                f"{kind.__name__} declares {name}, which Thunder does not read",
                fix=f"did you mean {near}? Else {PRIVATE_NAME_ADVICE}",
            )


def declared_names(kind: type, base: type) -> Iterator[str]:
    """Yield the names that a class defines or inherits from classes other than the bases of `base`."""
    for member in kind.__mro__:
        if member not in base.__mro__:  # `issubclass` would fill the cache of an abstract class
            yield from vars(member)


def options_of(kind: type) -> set[str]:
    """Return the names that become fields if the class is a dataclass: annotated names without `ClassVar`."""
    annotations: Mapping[str, object] = vars(kind).get("__annotations__", {})
    return {name for name, annotation in annotations.items() if "ClassVar" not in str(annotation)}


def require_tuple_of(owner: str, name: str, row: object, kinds: tuple[type, ...]) -> None:
    """Raise `BadRecipe` if a value is not a tuple or list of instances of these classes."""
    if not isinstance(row, tuple | list):
        raise BadRecipe(
            f"{owner}: {name} is {row!r:.80}, which is of class {type(row).__name__}",
            fix=f"make it a tuple: {name} = ({row!r:.80},)",
        )
    require_kinds(owner, name, row, kinds)


def require_kinds(owner: str, name: str, row: Iterable[object], kinds: tuple[type, ...]) -> None:
    """Raise `BadRecipe` for the first item that is not an instance of these classes."""
    for item in row:
        if isinstance(item, kinds):
            continue
        kind_names = f"an instance of {' or '.join(kind.__name__ for kind in kinds)}"
        if isinstance(item, type) and issubclass(item, kinds):
            raise BadRecipe(
                f"{owner}: {name} has the class {item.__name__} instead of {kind_names}", fix=f"write {item.__name__}()"
            )
        raise BadRecipe(
            f"{owner}: {name} has {item!r:.80}, which is not {kind_names}",
            fix=f"replace it by {kind_names}, or leave it out",
        )


def checked_parts(part: object, name: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """Return the result of a `setup_...` method of a recipe or plug-in; raise `BadRecipe` for an invalid result."""
    owner, result = type(part).__name__, getattr(part, name)()
    if isinstance(result, str | type) or not isinstance(result, Iterable):
        raise BadRecipe(f"{owner}: {name} returns {result!r:.80}", fix="return a tuple, which may be empty")
    row = tuple(result)
    require_kinds(owner, f"{name}()", row, kinds)
    return row


def require_traits(owner: str, part: object, *others: str) -> None:
    """Raise `BadRecipe` if a part's traits are not tuples of names, or its requirements are not requirements."""
    for trait in (*TRAITS, *others):
        row = getattr(part, trait)
        if trait == "needs" and isinstance(row, tuple | list) and any(isinstance(item, Requirement) for item in row):
            raise BadRecipe(
                f"{owner}: needs has {row!r:.80}, but it may only name other parts",
                fix="declare requirements of the machine as `requirements`",
            )
        require_tuple_of(owner, trait, row, (str,))
    require_tuple_of(owner, "requirements", part.requirements, (Requirement,))  # type: ignore[attr-defined]
