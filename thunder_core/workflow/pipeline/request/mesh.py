"""The mesh of ranks from options such as `--mesh dp=2 --mesh tp=2`, checked before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options.whole_number import is_whole_number

MIN_RANKS = 2  # ranks of an axis
FORMAT_FIX = "name each axis and its number of ranks, the outermost axis first, as in {0} dp=2 {0} tp=4"


def axes_in(option: str, sizes: Mapping[str, Any]) -> dict[str, int]:
    """Return the axes of a mesh, each with its number of ranks; raise `BadOption`."""
    axes = {name: str(text).strip() for name, text in sizes.items()}
    for name, text in axes.items():
        if not is_whole_number(text):
            raise BadOption(f"{option} {name}={text:.80} is not a number of ranks", fix=FORMAT_FIX.format(option))
    return {name: int(text) for name, text in axes.items()}


def require_axes(option: str, axes: Mapping[str, object]) -> None:
    """Raise `BadOption` for an axis whose name is no identifier, and for an axis of fewer than two ranks."""
    for name, size in axes.items():
        if not name.isidentifier():
            raise BadOption(
                f"{option} has the name {name!r:.80}, which is not an identifier", fix=FORMAT_FIX.format(option)
            )
        if not isinstance(size, int) or size < MIN_RANKS:
            raise BadOption(
                f"{option} {name}={size} has fewer than {MIN_RANKS} ranks",
                fix="leave out the axis and its recipe, or start more processes",
            )
