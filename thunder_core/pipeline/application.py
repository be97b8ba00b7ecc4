"""Applying a recipe to a model that is in memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

import torch

from thunder_core.compile_options import MAX_PROGRAMS
from thunder_core.compiler import jit
from thunder_core.errors import DegradedWarning
from thunder_core.pipeline.executors import NamedExecutor, candidates, lost_fusion
from thunder_core.pipeline.prepare import Prepared, degradation_texts
from thunder_core.pipeline.recipes import find_recipe, usable_transforms
from thunder_core.recipe import Recipe, Transform

Module = TypeVar("Module", bound=torch.nn.Module)


def compile(  # noqa: A001 - the word of the field
    model: Module,
    recipe: str | type[Recipe] | Recipe = "default",
    *,
    max_programs: int = MAX_PROGRAMS,
    **options: object,
) -> Module:
    """A module that does what the model does, compiled by a recipe when it is first called; it shares all its state.

    The recipe is named (`"hf-llama"`), a class, or an instance; `options` are the recipe's own. Executors that this
    machine lacks are left out; of parts of the recipe whose needs are not met, for the model where it is, a
    `DegradedWarning` tells. `max_programs` bounds how many programs are kept, as in `jit`.

    Raises UnknownName for a recipe that does not exist, BadOption or UnknownName for options that it does not take,
    and RecipeMismatch if it is for another family of models.
    """
    chosen = find_recipe(recipe, options)
    chosen.validate_all(model)
    device = device_of(model)
    named = candidates(chosen.all_executors(), device=device)
    for text, fix in degradation_texts((*chosen.degraded(device=device), *lost_fusion(named))):
        warnings.warn(f"the recipe {chosen.name} does without {text} ({fix})", DegradedWarning, stacklevel=2)
    return _compiled(model, usable_transforms(chosen, device=device), named, max_programs)


def device_of(model: torch.nn.Module) -> torch.device | None:
    """The device of a model's first parameter or buffer; None for a model without any."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)


def apply(prepared: Prepared, model: Module) -> Module:
    """The model, compiled by a recipe that has been prepared and has accepted it."""
    return _compiled(model, prepared.transforms, prepared.executors)


def _compiled(
    model: Module,
    transforms: Sequence[Transform],
    executors: Iterable[NamedExecutor],
    max_programs: int = MAX_PROGRAMS,
) -> Module:
    subject: torch.nn.Module = model
    for transform in transforms:
        subject = transform.prepare(subject)
    usable = [one.executor for one in executors if one.executor is not None]
    compiled = jit(subject, transforms=transforms, executors=usable, data_dependent="error", max_programs=max_programs)
    return cast(Module, compiled)
