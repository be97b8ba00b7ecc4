"""Symbolic arguments: the sizes and numbers of a call that the user declares symbolic, with their ranges."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from thunder_core.foundation.errors import BadSymbolicArgument

Bounds = tuple[int | None, int | None]
Given = Sequence["str | SymbolicArgument"] | Mapping[str, Sequence[int | None] | None]

ITEM = r"\[(?:-?[0-9]+|\*|'[^']*'|\"[^\"]*\")\]|\.(?!shape\b)[^\W\d]\w*(?![\w(])"  # a size is written `size()`
NAME = re.compile(
    rf"(?P<argument>[^\W\d]\w*)(?P<items>(?:{ITEM})*)(?:\.size\((?P<dimension>-?[0-9]+)\))?"
    r"(?: with (?P<companion>[^\W\d]\w*))?"
)
WRITE = (
    'for a number, write the name of its parameter ("scale"); for a size, write its dimension ("input_ids.size(1)"); '
    "items of lists and dicts and attributes are allowed (\"batch['input_ids'].size(1)\", "
    '"cache.layers[*].keys.size(2)" for each item)'
)
RANGE_FIX = 'write the minimum and the maximum, as in {"input_ids.size(1)": (1, 8192)}, or None for no range'


@dataclass(frozen=True)
class Attribute:
    """A step of a name that reads an attribute of an object, as in `cache.layers`."""

    name: str


@dataclass(frozen=True)
class EachItem:
    """A step of a name that reads every item of a list, tuple or dict, written `[*]`."""


Step = str | int | Attribute | EachItem  # a string or a number is the key or index of one item


@dataclass(frozen=True)
class ArgumentPath:
    """A parsed name: the parameter, the steps from the parameter to the value, and the dimension of a size.

    If `companion` is set, the name applies only to calls that have an argument with the name `companion`.
    """

    argument: str
    items: tuple[Step, ...]
    dimension: int | None
    companion: str | None = None


@dataclass(frozen=True)
class SymbolicArgument:
    """A size or a number among the arguments that is symbolic from the first call on.

    `name` is the name as the user wrote it. Values from `lower` to `upper` are allowed, both included; None means no
    bound. If `required` is false, a call need not have the argument: a recipe names the inputs of many models.

    Raises `BadSymbolicArgument` if the name does not follow the grammar, or if the range is invalid.
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
        """The parsed name."""
        return parse_name(self.name)

    @property
    def is_conditional(self) -> bool:
        """Whether the name applies only to calls that have another argument too.

        Recipes declare such names for KV caches. Such a name is a hint: the value becomes symbolic only if all
        executors support that. No warning is given otherwise.
        """
        return self.path.companion is not None

    @property
    def has_range(self) -> bool:
        """Whether a lower or an upper bound was given."""
        return self.lower is not None or self.upper is not None

    def includes(self, value: float) -> bool:
        """Whether a value is in the range."""
        return (self.lower is None or value >= self.lower) and (self.upper is None or value <= self.upper)

    @property
    def range_text(self) -> str:
        """The range as text: `1 to 8192`, `2 and more`, `at most 64`, or `any` without bounds."""
        if self.upper is None:
            return "any" if self.lower is None else f"{self.lower} and more"
        return f"at most {self.upper}" if self.lower is None else f"{self.lower} to {self.upper}"


def ranges_in_words(ranges: Mapping[str, tuple[int, int]]) -> str:
    """Return the ranges of dimensions as text: `seq 1 to 64, batch 1 to 4`."""
    return ", ".join(f"{name} {lower} to {upper}" for name, (lower, upper) in ranges.items())


def parse_name(name: object) -> ArgumentPath:
    """Parse a name such as `batch['input_ids'].size(1)`; raise `BadSymbolicArgument` for an invalid one."""
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
    """Parse one step of a name.

    Raise `SyntaxError` or `ValueError` if a text in brackets is neither an index nor a key.
    """
    if text.startswith("."):
        return Attribute(text[1:])
    key: str | int = ast.literal_eval(text[1:-1]) if text != "[*]" else ""
    return EachItem() if text == "[*]" else key


def require_bounds(name: str, bounds: Bounds, least: int | None = None) -> None:
    """Raise `BadSymbolicArgument` for bounds that are no integers, below `least`, or allow fewer than two values."""
    lower, upper = bounds
    if not all(bound is None or type(bound) is int for bound in bounds):
        raise BadSymbolicArgument(
            f"the range of {name} is {bounds!r:.80}, but both ends must be integers", fix=RANGE_FIX
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
        raise BadSymbolicArgument(f"the range of {name} is ({lower}, {upper}), {wrong}", fix=RANGE_FIX)


def symbolic_arguments(ranges: Given) -> tuple[SymbolicArgument, ...]:
    """Return the symbolic arguments of names, or of names with ranges; raise `BadSymbolicArgument` for invalid ones."""
    if isinstance(ranges, str) or not isinstance(ranges, Mapping | Iterable):
        raise BadSymbolicArgument(f"symbolic={ranges!r:.80} is not a list of names", fix='write symbolic=["x.size(0)"]')
    if isinstance(ranges, Mapping):
        return tuple(SymbolicArgument(name, *bounds_of(name, bounds)) for name, bounds in ranges.items())
    arguments = [item if isinstance(item, SymbolicArgument) else SymbolicArgument(item, None, None) for item in ranges]
    return tuple(dict.fromkeys(arguments))


def bounds_of(name: object, bounds: object) -> Bounds:
    """Return the lower and the upper bound of a range; raise `BadSymbolicArgument` if it is not a pair."""
    if bounds is None:
        return None, None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise BadSymbolicArgument(f"the range of {name} is {bounds!r:.80}, which is not a pair", fix=RANGE_FIX)
    return bounds[0], bounds[1]
