"""The parts of Thunder that a user leaves out: a transform, an executor, or an executor in some modules.

This file does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from thunder_core.foundation.errors import BadOption

ROOT = "module"  # the path of the model itself
ITEM = re.compile(r"\[['\"]?([^\]'\"]*)['\"]?\]")  # paths of modules may have items, such as `layers[0]`
WITHOUT_FIX = "write the name of an executor or a transform, or of an executor and a module: inductor:layers.3.mlp"


@dataclass(frozen=True)
class LeftOut:
    """A part that is left out: the transform or executor `name`.

    If `pattern` is set, the executor is left out only in the modules that match the pattern.
    """

    name: str
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.pattern}" if self.pattern else self.name


def parse_left_out(text: object) -> LeftOut:
    """Parse `NAME` or `NAME:MODULE`; raise `BadOption` for any other form."""
    if not isinstance(text, str):
        raise BadOption(f"without has {text!r:.80}, which is not a string", fix=WITHOUT_FIX)
    name, colon, pattern = (part.strip() for part in text.partition(":"))
    if not name or bool(colon) != bool(pattern):
        raise BadOption(f"without has {text!r:.80}, which has no name", fix=WITHOUT_FIX)
    return LeftOut(name, pattern)


def left_out_texts(without: object) -> tuple[str, ...]:
    """Return the texts of the parts to leave out, sorted and without duplicates; raise `BadOption` for invalid ones."""
    if isinstance(without, str) or not isinstance(without, Iterable):
        raise BadOption(f"without={without!r:.80} is not a list", fix=f"write without=({without!r:.80},)")
    return tuple(sorted({str(parse_left_out(text)) for text in without}))


def parts_left_out(without: Sequence[str]) -> tuple[LeftOut, ...]:
    """Return the transforms and executors that are left out entirely."""
    return tuple(part for part in map(parse_left_out, without) if not part.pattern)


def patterns_of(without: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the patterns of the modules in which the executor `name` is left out."""
    return tuple(part.pattern for part in map(parse_left_out, without) if part.name == name and part.pattern)


@lru_cache(maxsize=1 << 16)
def covers(pattern: str, path: str) -> bool:
    """Whether a pattern matches the path of a module, or of a module that contains it.

    The pattern uses the wildcards of `fnmatch`. It may match the whole path, or the end of the path after any dot.
    """
    names = ITEM.sub(r".\1", path).split(".") if path else []
    if names[:1] != [ROOT]:
        names = [ROOT, *names]
    ends = range(1, len(names) + 1)
    return any(fnmatchcase(".".join(names[start:end]), pattern) for end in ends for start in range(end))
