"""Leave out transforms and executors by name, and executors in some modules of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch

from thunder_core.foundation.errors import BadOption, RecipeConflict, UnknownName
from thunder_core.foundation.options.left_out import LeftOut, covers, parse_left_out, parts_left_out
from thunder_core.foundation.similar_names import did_you_mean
from thunder_core.tracing.extension.traits import Part, parts_with_name

Kind = TypeVar("Kind", bound=Part)
FALLBACK = "torch"  # the executor of all operations that no other executor claims
MAX_LISTED_MODULES = 5  # the largest number of modules that an error message lists


def drop_left_out(parts: Iterable[Kind], without: Sequence[str]) -> list[Kind]:
    """Return the parts, except parts that are left out in all modules."""
    names = {removed.name for removed in parts_left_out(without)}
    return [part for part in parts if names.isdisjoint(part.labels)]


def require_parts(
    without: Sequence[str], transforms: Sequence[Part], executors: Sequence[Part], others: Sequence[Part] = ()
) -> None:
    """Raise an error if a part of `without` cannot be left out.

    Raises `UnknownName` if no transform or executor has the name. Raises `BadOption` for eager PyTorch, which runs the
    operations that no executor claims, and for a transform with a module pattern. Raises `RecipeConflict` if another
    part, or a recipe or plug-in in `others`, needs the part.
    """
    for part_to_leave_out in map(parse_left_out, without):
        require_part(part_to_leave_out, transforms, executors)
    remaining_parts = [*drop_left_out(transforms, without), *drop_left_out(executors, without)]
    removed_parts = [part for part in (*transforms, *executors) if part not in remaining_parts]
    for part in (*others, *remaining_parts):
        for name in part.needs:
            if parts_with_name(name, removed_parts) and not parts_with_name(name, remaining_parts):
                raise RecipeConflict(
                    f"{part.title} needs {name}, but --without leaves it out",
                    fix=f"leave out {part.title} too, or keep {name}",
                )


def require_part(left_out: LeftOut, transforms: Sequence[Part], executors: Sequence[Part]) -> None:
    """Raise the error of `require_parts` if a single part cannot be left out."""
    if left_out.name == FALLBACK:
        raise BadOption(
            f"--without {left_out}: {FALLBACK} runs the operations that no other executor claims",
            fix="name another executor",
        )
    if parts_with_name(left_out.name, executors):
        return
    if not parts_with_name(left_out.name, transforms):
        labels = sorted({label for part in (*transforms, *executors) for label in part.labels} - {FALLBACK})
        raise UnknownName(
            f"--without {left_out}: no executor or transform of the recipe is named {left_out.name!r:.60}",
            fix=f"{did_you_mean(left_out.name, labels)}known: {', '.join(labels)}",
        )
    if left_out.pattern:
        raise BadOption(
            f"--without {left_out}: {left_out.name} is a transform, which can only be left out of the whole program",
            fix=f"write --without {left_out.name}, or name an executor",
        )


def require_modules(without: Sequence[str], model: torch.nn.Module) -> None:
    """Raise `UnknownName` if an executor is left out in modules that the model does not have."""
    paths = [name for name, _ in model.named_modules() if name]
    for part in map(parse_left_out, without):
        if part.pattern and not any(covers(part.pattern, path) for path in ("", *paths)):
            shown = ", ".join(paths[:MAX_LISTED_MODULES]) + (", ..." if len(paths) > MAX_LISTED_MODULES else "")
            raise UnknownName(
                f"--without {part}: no module of this {type(model).__name__} matches {part.pattern!r:.60}",
                fix=f"{did_you_mean(part.pattern, paths)}its modules: {shown or 'none'}",
            )
