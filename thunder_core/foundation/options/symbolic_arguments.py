"""Symbolic arguments: the sizes and numbers of a call that its user named as symbolic, with their ranges."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from thunder_core.foundation.errors import BadSymbolicArgument

Bounds = tuple[int | None, int | None]
Given = Sequence["str | SymbolicArgument"] | Mapping[str, Sequence[int | None] | None]

ITEM = r"\[(?:-?[0-9]+|\*|'[^']*'|\"[^\"]*\")\]|\.(?!shape\b)[^\W\d]\w*(?![\w(])"  # sizes are asked by `size()`
NAME = re.compile(
    rf"(?P<argument>[^\W\d]\w*)(?P<items>(?:{ITEM})*)(?:\.size\((?P<dimension>-?[0-9]+)\))?"
    r"(?: with (?P<companion>[^\W\d]\w*))?"
)
WRITE = (
    'for a number, write the name of its parameter ("scale"); for a size, write its dimension ("input_ids.size(1)"); '
    "items of lists and dicts and attributes are allowed (\"batch['input_ids'].size(1)\", "
    '"cache.layers[*].keys.size(2)" for each item)'
)
WRITE_RANGE = 'write the minimum and the maximum, as in {"input_ids.size(1)": (1, 8192)}, or None for no range'


@dataclass(frozen=True)
class Attribute:
    """A step of a name that leads on by an attribute of an object, as in `cache.layers`."""

    name: str


@dataclass(frozen=True)
class EachItem:
    """A step of a name that leads on to every item of a list, tuple or dict, written `[*]`."""


Step = str | int | Attribute | EachItem  # a text or a number is the key or index of one item


@dataclass(frozen=True)
class ArgumentPath:
    """A parsed name: the parameter, the steps that lead on from it, and the dimension where it is a size.

    With a `companion`, the name counts only in calls that are given an argument of that name.
    """

    argument: str
    items: tuple[Step, ...]
    dimension: int | None
    companion: str | None = None


@dataclass(frozen=True)
class SymbolicArgument:
    """A size or a number among the arguments that is symbolic from the first call on, by the name that its user wrote.

    It may have the values from `lower` to `upper`, both included; None is no bound. One that is not `required` may be
    lacking in a call: recipes name the inputs of many models.
    Raises `BadSymbolicArgument` for a name that is not of the grammar, and for a range that cannot be.
    """

    name: str
    lower: int | None
    upper: int | None
    required: bool = True

    def __post_init__(self) -> None:
        path = parse_name(self.name)
        require_bounds(self.name, (self.lower, self.upper), least=None if path.dimension is None else 1)

    @property
    def path(self) -> ArgumentPath:
        """The name in its parts."""
        return parse_name(self.name)

    @property
    def is_conditional(self) -> bool:
        """Whether it counts in calls alone that are given a further argument, as recipes have it for caches.

        Such a name is a hint: it asks for symbols where these cost nothing, and nobody is told where they do not serve.
        """
        return self.path.companion is not None

    @property
    def has_range(self) -> bool:
        """Whether a lower or an upper bound was given."""
        return self.lower is not None or self.upper is not None

    def includes(self, value: float) -> bool:
        """Whether a value lies within the range."""
        return (self.lower is None or value >= self.lower) and (self.upper is None or value <= self.upper)

    @property
    def range_text(self) -> str:
        """The range in words: `1 to 8192`, `2 and more`, `at most 64`, or `any` without bounds."""
        if self.upper is None:
            return "any" if self.lower is None else f"{self.lower} and more"
        return f"at most {self.upper}" if self.lower is None else f"{self.lower} to {self.upper}"


def ranges_in_words(ranges: Mapping[str, tuple[int, int]]) -> str:
    """The ranges of dimensions as people read them: `seq 1 to 64, batch 1 to 4`."""
    return ", ".join(f"{name} {lower} to {upper}" for name, (lower, upper) in ranges.items())


def parse_name(name: object) -> ArgumentPath:
    """The parts of a name such as `batch['input_ids'].size(1)`; raises `BadSymbolicArgument`."""
    match = NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise BadSymbolicArgument(f"{name!r:.80} names neither a number nor a size of an argument", fix=WRITE)
    try:
        items = tuple(map(_step, re.findall(ITEM, match["items"])))
    except (SyntaxError, ValueError):  # such as [007]
        raise BadSymbolicArgument(f"{name!r:.80} has an item that is neither an index nor a key", fix=WRITE) from None
    dimension = None if match["dimension"] is None else int(match["dimension"])
    return ArgumentPath(match["argument"], items, dimension, match["companion"])


def _step(text: str) -> Step:
    """The step that a part of a name stands for; raises `SyntaxError` or `ValueError` for no index and no key."""
    if text.startswith("."):
        return Attribute(text[1:])
    found: str | int = ast.literal_eval(text[1:-1]) if text != "[*]" else ""
    return EachItem() if text == "[*]" else found


def require_bounds(name: str, bounds: Bounds, least: int | None = None) -> None:
    """Raise `BadSymbolicArgument` for bounds that are no integers, or leave fewer than two values from `least` on."""
    lower, upper = bounds
    if not all(bound is None or type(bound) is int for bound in bounds):
        raise BadSymbolicArgument(
            f"the range of {name} is {bounds!r:.80}, but both ends must be integers", fix=WRITE_RANGE
        )
    if least is not None and lower is not None and lower < least:
        raise BadSymbolicArgument(
            f"the range of {name} begins at {lower}, but a size of 0 is never symbolic, because empty tensors can take "
            "other branches",
            fix=f"begin the range of {name} at {least}; Thunder traces a separate program for a size of 0",
        )
    lower = least if lower is None else lower
    if lower is not None and upper is not None and lower >= upper:
        wrong = "which has only one value" if lower == upper else "which has no values"
        raise BadSymbolicArgument(f"the range of {name} is ({lower}, {upper}), {wrong}", fix=WRITE_RANGE)


def symbolic_arguments(given: Given) -> tuple[SymbolicArgument, ...]:
    """The arguments that are symbolic, by their names alone or by names with ranges; raises `BadSymbolicArgument`."""
    if isinstance(given, str) or not isinstance(given, Mapping | Iterable):
        raise BadSymbolicArgument(f"symbolic={given!r:.80} is not a list of names", fix='write symbolic=["x.size(0)"]')
    if isinstance(given, Mapping):
        return tuple(SymbolicArgument(name, *bounds_of(name, bounds)) for name, bounds in given.items())
    arguments = [one if isinstance(one, SymbolicArgument) else SymbolicArgument(one, None, None) for one in given]
    return tuple(dict.fromkeys(arguments))


def bounds_of(name: object, given: object) -> Bounds:
    """The bounds that a range gives; raises `BadSymbolicArgument` for what is no range."""
    if given is None:
        return None, None
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise BadSymbolicArgument(f"the range of {name} is {given!r:.80}, which is not a pair", fix=WRITE_RANGE)
    return given[0], given[1]
