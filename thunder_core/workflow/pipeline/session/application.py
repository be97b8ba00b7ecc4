"""Apply a recipe to a model in memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

import torch

from thunder_core.backend.parallel.groups import with_program_names
from thunder_core.compilation.compiler import CLEANUP_TRANSFORMS, compile_in_order, specializations_of
from thunder_core.compilation.dynamo.entry import checked_for_graphs, trace_with_dynamo
from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import BadSymbolicArgument, DegradedWarning, WrongInputs
from thunder_core.foundation.model_configs import model_type_of
from thunder_core.foundation.options.symbolic_arguments import Given, SymbolicArgument, parse_name, symbolic_arguments
from thunder_core.foundation.tested_versions import require_tested_torch
from thunder_core.frontend.acquire.named import parameters_of
from thunder_core.passes.recipe import Recipe, Transform
from thunder_core.passes.recipe.settings import compile_options
from thunder_core.tracing.extension.leaving_out import require_modules
from thunder_core.tracing.extension.transform import prepare_model
from thunder_core.workflow.pipeline.request.automatic import asks_for_choice, choose_recipe, with_choice
from thunder_core.workflow.pipeline.request.recipes import RecipeArgument, find_recipe, usable_transforms
from thunder_core.workflow.pipeline.session.executors import NamedExecutor, candidates, lost_fusion
from thunder_core.workflow.pipeline.session.prepare import PreparedModel, degradation_texts

Module = TypeVar("Module", bound=torch.nn.Module)


def compile(  # noqa: A001 - the usual name
    model: Module,
    recipe: RecipeArgument = "default",
    *,
    max_programs: int | None = None,
    symbolic: Given | None = None,
    without: Sequence[str] = (),
    **options: object,
) -> Module:
    """Return a module that computes the same as the model and shares its state; a recipe compiles it at the first call.

    `recipe` is a name (`"hf-llama"`), a class, an instance, or a list of recipes, plug-ins, transforms, executors and
    lookasides, which are combined; `"auto"` selects a recipe for the model and its device. `options` are the recipe's
    options. Executors that this machine lacks are skipped; a `DegradedWarning` reports parts of the recipe whose
    requirements the model's device does not meet. `max_programs` limits the number of programs, as in `jit`, and
    overrides the recipe. `symbolic` names sizes and numbers that are symbolic, as in `jit`, or dimensions of the
    recipe: `symbolic={"seq": (1, 8192)}`. `without` leaves out transforms and executors, in all or some modules, as in
    `jit`; the recipe may leave out others.

    Raises BadSymbolicArgument like `jit`, and for a dimension that the model does not have; UnknownName for a recipe
    that does not exist, and for an unknown name in `without`; BadOption or UnknownName for invalid options;
    RecipeMismatch if the recipe is for another family of models; RecipeConflict for parts that exclude each other;
    WrongInputs if `model` is not a module; and TorchNotTested for a release of PyTorch that Thunder has not been tested
    with.
    """
    require_tested_torch()
    if not isinstance(model, torch.nn.Module):
        raise WrongInputs(
            f"compile takes a module, not {object_of_class(type(model))}",
            fix="compile a function with thunder_core.jit",
        )
    device = device_of(model)
    if asks_for_choice(recipe):
        model_type = model_type_of(model)
        recipe = with_choice(recipe, choose_recipe(model_type, device))
    chosen = find_recipe(recipe, options)
    chosen = chosen.with_(without=without) if without else chosen
    chosen.composition.require_consistent(CLEANUP_TRANSFORMS)
    require_modules(chosen.composition.without, model)
    chosen.validate_all(model)
    named = candidates(chosen.all_executors(), device=device)
    for text, fix in degradation_texts((*chosen.skipped_parts(device=device), *lost_fusion(named))):
        warnings.warn(f"the recipe {chosen.name} skips {text} ({fix})", DegradedWarning, stacklevel=2)
    arguments = chosen.symbolic_arguments(() if symbolic is None and chosen.acquires_by != "jit" else symbolic)
    require_dimensions(model, chosen, symbolic or ())
    transforms = with_program_names(usable_transforms(chosen, device=device, more=CLEANUP_TRANSFORMS))
    limit = {} if max_programs is None else {"max_programs": max_programs}
    return _compile(prepare_model(model, transforms), chosen, transforms, named, arguments, limit)


def require_dimensions(model: torch.nn.Module, recipe: Recipe, ranges: Given) -> None:
    """Raise `BadSymbolicArgument` for a dimension that no input of a model's `forward` has."""
    parameters = [parameter.name for parameter in parameters_of(model) or ()]
    dimensions = recipe.all_dimensions()
    for argument in symbolic_arguments(ranges):
        names = dimensions.get(argument.name, ())
        if names and not any(parse_name(name).argument in parameters for name in names):
            raise BadSymbolicArgument(
                f"this {type(model).__name__} has no input for {argument.name} of the recipe {recipe.name}",
                fix=f"name a size of one of its inputs: {', '.join(parameters)}",
            )


def device_of(model: torch.nn.Module) -> torch.device | None:
    """Return the device of a model's first parameter or buffer; None for a model without any."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)


def apply(prepared: PreparedModel, model: Module, symbolic: tuple[SymbolicArgument, ...] | None = None) -> Module:
    """Compile a model that the recipe's transforms have prepared; `symbolic` overrides the recipe's symbolic sizes."""
    recipe = prepared.recipe
    arguments = recipe.symbolic_arguments(None if recipe.acquires_by == "jit" else ()) if symbolic is None else symbolic
    return _compile(model, recipe, prepared.in_order, prepared.executors, arguments)


def _compile(
    model: Module,
    recipe: Recipe,
    transforms: Sequence[Transform],
    executors: Iterable[NamedExecutor],
    symbolic: tuple[SymbolicArgument, ...],
    settings: Mapping[str, object] | None = None,
) -> Module:
    """Compile a model with the usable parts of a recipe; `settings` override the recipe's settings."""
    composition = recipe.composition
    usable = [candidate.executor for candidate in executors if candidate.executor is not None]
    options = replace(compile_options({**composition.settings, **(settings or {})}), symbolic=symbolic)
    compiled = compile_in_order(model, transforms, usable, options, composition.lookasides)
    if recipe.acquires_by == "jit":
        return cast(Module, compiled)
    return cast(
        Module, trace_with_dynamo(model, checked_for_graphs(specializations_of(compiled).compiler.settings, model))
    )
