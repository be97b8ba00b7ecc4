"""Parts that are left out by name: a transform, an executor, or an executor in some modules; without torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from thunder_core.foundation.errors import BadOption

ROOT = "module"  # the path of the model itself
ITEM = re.compile(r"\[['\"]?([^\]'\"]*)['\"]?\]")  # paths of modules that functions read have `layers[0]`
FORM = "write the name of an executor or a transform, or of an executor and a module: inductor:layers.3.mlp"


@dataclass(frozen=True)
class LeftOut:
    """A transform or an executor that is left out, by its name, or an executor in the modules of a `pattern` alone."""

    name: str
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.pattern}" if self.pattern else self.name


def parse_left_out(text: object) -> LeftOut:
    """The part that a text `NAME` or `NAME:MODULE` leaves out; raises `BadOption` for what is of neither form."""
    if not isinstance(text, str):
        raise BadOption(f"without has {text!r:.80}, which is not a string", fix=FORM)
    name, colon, pattern = (part.strip() for part in text.partition(":"))
    if not name or bool(colon) != bool(pattern):
        raise BadOption(f"without has {text!r:.80}, which names nothing", fix=FORM)
    return LeftOut(name, pattern)


def left_out_texts(without: object) -> tuple[str, ...]:
    """The texts of what is left out, each once and in one order; raises `BadOption` for what cannot be."""
    if isinstance(without, str) or not isinstance(without, Iterable):
        raise BadOption(f"without={without!r:.80} is not a list", fix=f"write without=({without!r:.80},)")
    return tuple(sorted({str(parse_left_out(text)) for text in without}))


def parts_left_out(without: Sequence[str]) -> tuple[LeftOut, ...]:
    """The parts that are left out whole."""
    return tuple(one for one in map(parse_left_out, without) if not one.pattern)


def patterns_of(without: Sequence[str], name: str) -> tuple[str, ...]:
    """The patterns of the modules that the executor of a name is left out of."""
    return tuple(one.pattern for one in map(parse_left_out, without) if one.name == name and one.pattern)


@lru_cache(maxsize=1 << 16)
def covers(pattern: str, path: str) -> bool:
    """Whether a module's path is one that a pattern means, or leads below it.

    The pattern is one of `fnmatch` for the path, or for the end of it behind any of its dots.
    """
    names = ITEM.sub(r".\1", path).split(".") if path else []
    if names[:1] != [ROOT]:
        names = [ROOT, *names]
    ends = range(1, len(names) + 1)
    return any(fnmatchcase(".".join(names[start:end]), pattern) for end in ends for start in range(end))
