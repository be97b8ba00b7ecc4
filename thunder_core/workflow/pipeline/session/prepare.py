"""The preparation of a request: all checks of its model and recipe that need no weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from transformers import PretrainedConfig

from thunder_core.compilation.compiler import CLEANUP_TRANSFORMS
from thunder_core.foundation.errors import EnvironmentLacks
from thunder_core.passes.recipe import Processor, Recipe, Transform, unmet_reason
from thunder_core.passes.transforms.quantize import Quantize, apply_to_quantize
from thunder_core.passes.transforms.tensor_parallel import ParallelizeLinears
from thunder_core.tracing.extension.requirement import Degradation, by_reason
from thunder_core.workflow.models.folder.checkpoint import require_checkpoint
from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.kinds.table import kind_of
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.loading.load import plan_loading
from thunder_core.workflow.models.loading.plan import LoadingPlan
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline.request.automatic import asks_for_choice, choose_recipe, with_choice
from thunder_core.workflow.pipeline.request.folder_recipe import with_trusted_recipe
from thunder_core.workflow.pipeline.request.recipes import requested_recipe, sample_of, usable_transforms
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.samples import USUAL_SEQUENCE
from thunder_core.workflow.pipeline.session.executors import NamedExecutor, candidates, lost_fusion, without_ranges
from thunder_core.workflow.pipeline.session.placement import GPU, pads_texts, usual_sequence, with_placement
from thunder_core.workflow.report import SkippedPart


@dataclass(frozen=True)
class PreparedModel:
    """A recipe with its options, the model to load, and the transforms and executors that can be used.

    `in_order` are the transforms in the order of application, including the transforms that clean up each program.
    `degraded` are the parts of the recipe that this machine or the target lacks. `choice` are the reasons for an
    automatic selection of the recipe. `mesh` has the axes of the mesh of ranks, if several transforms are parallel.
    `usual_sequence` is the default number of tokens in a text.
    """

    recipe: Recipe
    model: ModelRequest
    loading: LoadingPlan
    in_order: tuple[Transform, ...]
    executors: tuple[NamedExecutor, ...]
    degraded: tuple[SkippedPart, ...]
    choice: tuple[str, ...] = ()
    mesh: Mapping[str, int] = field(default_factory=dict)
    usual_sequence: int = USUAL_SEQUENCE

    @property
    def pads_texts(self) -> bool:
        """Whether random texts have padding and an attention mask."""
        return pads_texts(self.recipe)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The recipe's own transforms in order."""
        own = {type(transform) for transform, _ in self.recipe.composition.owned_transforms}
        return tuple(part for part in self.in_order if type(part) in own)

    @property
    def quantize(self) -> Quantize | None:
        """The transform that quantizes; None if there is none."""
        return next((part for part in self.in_order if isinstance(part, Quantize)), None)

    @property
    def parallel(self) -> tuple[Transform, ...]:
        """The transforms for several ranks, in the order of the axes of a mesh; empty for a recipe of one process."""
        transforms = [transform for transform in self.in_order if transform.is_parallel]
        return tuple(sorted(transforms, key=lambda transform: isinstance(transform, ParallelizeLinears)))

    def parts_of_batch(self, ranks: int) -> int:
        """Return the number of parts of the batch of all ranks: 1 if all ranks have the same inputs."""
        sizes = (*self.mesh.values(),) if len(self.parallel) > 1 else (ranks,)
        pairs = zip(self.parallel, sizes, strict=True)
        return math.prod(size for transform, size in pairs if not isinstance(transform, ParallelizeLinears))

    @property
    def model_name(self) -> str:
        """The name of the model for people: its folder or hub name, or the sample's."""
        if self.model.sample is None:
            return str(self.model.model)
        is_recipes_sample = self.model.sample == SAMPLES.get(self.recipe.shared_sample)
        return self.recipe.shared_sample if is_recipes_sample else self.model.sample.architecture

    @property
    def dtype_name(self) -> str:
        """The dtype that the model will have, as far as it is known without its weights."""
        is_random = self.model.sample is not None or self.model.random_weights
        dtype: Any = self.loading.dtype or self.loading.config.dtype or (torch.float32 if is_random else None)
        return str(dtype).removeprefix("torch.") if dtype else "the dtype of its weights"

    @property
    def options(self) -> Mapping[str, str]:
        """The values of the recipe's options, specified or default, as text."""
        return {name: str(value) for name, value in self.recipe.options.items()}


def prepare(request: Request, *, config_is_enough: bool = False) -> PreparedModel:
    """Find and check the model and the recipe of a request; weights may be missing if `config_is_enough` is set.

    Raises the errors of `requested_recipe` and `plan_loading`, `RecipeMismatch` for another family of models,
    `BadModelFolder` for missing or damaged weights, `NoLoss` for training on a task without labels, and
    `EnvironmentLacks` if the request is strict and this machine lacks a part of the recipe.
    """
    request, choice = with_chosen_recipe(with_trusted_recipe(request))
    recipe = requested_recipe(request)
    model = with_placement(with_sample(request.model, recipe), recipe, request.target)
    model = replace(model, train=request.train)
    device = torch.device(cast(str, model.device))
    in_order = usable_transforms(recipe, request.target, device, more=CLEANUP_TRANSFORMS)
    if request.calibrate:
        in_order = apply_to_quantize(lambda quantize: replace(quantize, calibrated=True), in_order)
    named = candidates(recipe.all_executors(), request.target, device)
    constant = without_ranges(named) if request.dynamic else ()
    degraded = as_facts((*recipe.skipped_parts(request.target, device), *lost_fusion(named), *constant))
    if not request.force_slow:
        refuse_slow_parts(recipe, request.target, device)
    if request.strict:
        require_not_degraded(recipe, degraded)
    with quiet_transformers():
        loading = plan_loading(model)
        refuse_other_family(recipe, loading)
        require_weights(loading, model, config_is_enough=config_is_enough)
    if request.train:
        batch = request.batch or (2 if "batch" in request.dynamic else 1)
        kind_of(loading.config).require_loss(loading.task, loading.config, batch)
    usual = usual_sequence(recipe, GPU if request.target else device)
    return PreparedModel(recipe, model, loading, in_order, named, degraded, choice, dict(request.mesh), usual)


def refuse_slow_parts(recipe: Recipe, target: str, device: torch.device) -> None:
    """Raise `EnvironmentLacks` if a combination of recipes is known to be slower than eager on this processor."""
    if len(recipe.recipes) < 2:
        return
    for part, need in recipe.all_requirements():
        if isinstance(need, Processor) and need.otherwise and (reason := unmet_reason(need, target, device)):
            raise EnvironmentLacks(
                f"the combination {recipe.name} would be slower than eager PyTorch here: for {part}, {reason}",
                fix=f"use {need.otherwise} instead, or set --force-slow to accept a slower model",
            )


def with_chosen_recipe(request: Request) -> tuple[Request, tuple[str, ...]]:
    """If the request asks for `auto`, return it with the selected recipe and the reasons; otherwise, unchanged."""
    if not asks_for_choice(request.recipe):
        return request, ()
    placed = with_placement(with_sample(request.model, Recipe()), Recipe(), request.target)
    with quiet_transformers():
        model_type = plan_loading(placed).config.model_type
    device = torch.device(cast(str, placed.device))
    choice = choose_recipe(model_type, device, request.target, generates=request.generates)
    return replace(request, recipe=with_choice(request.recipe, choice)), choice.reasons


def with_sample(model: ModelRequest, recipe: Recipe) -> ModelRequest:
    """Return a request for the recipe's own sample if it names no model; other requests unchanged."""
    if model.model is not None or model.sample is not None:
        return model
    return replace(model, sample=sample_of(recipe))


def require_weights(loading: LoadingPlan, model: ModelRequest, *, config_is_enough: bool = False) -> None:
    """Raise `BadModelFolder` if the weights of a folder are missing or damaged.

    Weights may be missing if `config_is_enough` is set, or if they can be downloaded from the Hub later.
    """
    origin = loading.origin
    if isinstance(origin, FolderOrigin) and origin.hub is None and not model.random_weights:
        require_checkpoint(origin.folder, config_is_enough=config_is_enough)


def refuse_other_family(recipe: Recipe, loading: LoadingPlan) -> None:
    """Raise `RecipeMismatch` for a config of another family, before the weights are loaded."""
    model_type = loading.config.model_type
    if any(part.families and model_type not in part.families for part in recipe.recipes):
        recipe.validate_all(_ConfigOnly(loading.config))


class _ConfigOnly(torch.nn.Module):
    """A model with only a config."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.config: Any = config


def degradation_texts(degraded: Iterable[SkippedPart | Degradation]) -> Iterator[tuple[str, str]]:
    """Yield a text for the missing parts of a recipe with the same reason, and the fix."""
    yield from ((f"{lost.part}: {lost.reason}", lost.fix) for lost in by_reason(degraded))


def as_facts(lost: Iterable[Degradation]) -> tuple[SkippedPart, ...]:
    """Return missing parts of a recipe as rows of the report."""
    return tuple(
        SkippedPart(part=degradation.part, reason=degradation.reason, fix=degradation.fix) for degradation in lost
    )


def require_not_degraded(recipe: Recipe, degraded: tuple[SkippedPart, ...]) -> None:
    """Raise `EnvironmentLacks` if a part of the recipe cannot be used."""
    if degraded:
        texts, fixes = zip(*degradation_texts(degraded), strict=True)
        raise EnvironmentLacks(
            f"parts of {recipe.name} cannot be used: {'; '.join(texts)}",
            fix=f"{'; '.join(dict.fromkeys(fixes))}; or leave out --strict",
        )
