"""Leaving out transforms and executors by name, and executors in some modules of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption, RecipeConflict, UnknownName
from thunder_core.foundation.options.left_out import LeftOut, covers, parse_left_out, parts_left_out
from thunder_core.tracing.extension.traits import Part, called

Kind = TypeVar("Kind", bound=Part)
FALLBACK = "torch"  # the executor that runs whatever no other one claims
SHOWN = 5  # modules that an error names


def remaining(parts: Iterable[Kind], without: Sequence[str]) -> list[Kind]:
    """The parts that are not left out whole."""
    names = {one.name for one in parts_left_out(without)}
    return [part for part in parts if names.isdisjoint(part.labels)]


def require_parts(
    without: Sequence[str], transforms: Sequence[Part], executors: Sequence[Part], others: Sequence[Part] = ()
) -> None:
    """Raise for what cannot be left out of these transforms and executors, and what brings them.

    `UnknownName` for a name that none of them has, `BadOption` for eager PyTorch, which runs what nobody else claims,
    and for a transform in some modules, and `RecipeConflict` for a part that another one needs.
    """
    for one in map(parse_left_out, without):
        require_part(one, transforms, executors)
    left = [*remaining(transforms, without), *remaining(executors, without)]
    gone = [part for part in (*transforms, *executors) if part not in left]
    for part in (*others, *left):
        for name in part.needs:
            if called(name, gone) and not called(name, left):
                raise RecipeConflict(
                    f"{part.title} needs {name}, but --without leaves it out",
                    fix=f"leave out {part.title} too, or keep {name}",
                )


def require_part(one: LeftOut, transforms: Sequence[Part], executors: Sequence[Part]) -> None:
    """Raise as `require_parts` does where one thing cannot be left out."""
    if one.name == FALLBACK:
        raise BadOption(
            f"--without {one}: {FALLBACK} runs the operations that no other executor claims",
            fix="name another executor",
        )
    if called(one.name, executors):
        return
    if not called(one.name, transforms):
        known = sorted({label for part in (*transforms, *executors) for label in part.labels} - {FALLBACK})
        raise UnknownName(
            f"--without {one}: no executor or transform of the recipe is named {one.name!r:.60}",
            fix=f"{plugins.meant(one.name, known)}known: {', '.join(known)}",
        )
    if one.pattern:
        raise BadOption(
            f"--without {one}: {one.name} is a transform, which can only be left out of the whole program",
            fix=f"write --without {one.name}, or name an executor",
        )


def require_modules(without: Sequence[str], model: torch.nn.Module) -> None:
    """Raise `UnknownName` for an executor that is left out of modules of which the model has none."""
    paths = [name for name, _ in model.named_modules() if name]
    for one in map(parse_left_out, without):
        if one.pattern and not any(covers(one.pattern, path) for path in ("", *paths)):
            shown = ", ".join(paths[:SHOWN]) + (", ..." if len(paths) > SHOWN else "")
            raise UnknownName(
                f"--without {one}: no module of this {type(model).__name__} matches {one.pattern!r:.60}",
                fix=f"{plugins.meant(one.pattern, paths)}its modules: {shown or 'none'}",
            )
