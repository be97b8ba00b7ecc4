"""A model and a recipe, understood: everything checked that can be checked without reading weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from transformers import PretrainedConfig

from thunder_core.errors import EnvironmentLacks
from thunder_core.extension.requirement import Degradation
from thunder_core.models.checkpoint import checkpoint_files
from thunder_core.models.labels import require_labels
from thunder_core.models.library_output import quiet_transformers
from thunder_core.models.load import LoadingPlan, plan_loading
from thunder_core.models.origin import FolderOrigin
from thunder_core.models.request import ModelRequest
from thunder_core.models.sample_models import SAMPLES
from thunder_core.pipeline.executors import NamedExecutor, candidates, lost_fusion, without_ranges
from thunder_core.pipeline.placement import with_placement
from thunder_core.pipeline.recipes import find_recipe, sample_of, usable_transforms
from thunder_core.pipeline.request import Request
from thunder_core.recipe import Recipe, Transform
from thunder_core.report import Degraded


@dataclass(frozen=True)
class Prepared:
    """The recipe with its options, the model as it will be loaded, and what this machine has for them."""

    recipe: Recipe
    model: ModelRequest
    loading: LoadingPlan
    transforms: tuple[Transform, ...]
    executors: tuple[NamedExecutor, ...]
    degraded: tuple[Degraded, ...]

    @property
    def model_name(self) -> str:
        """The model as a person calls it: its folder or hub name, or the sample's."""
        if self.model.sample is None:
            return str(self.model.model)
        own = self.model.sample == SAMPLES.get(self.recipe.sample)
        return self.recipe.sample if own else self.model.sample.architecture

    @property
    def dtype_name(self) -> str:
        """The dtype that the model will have, as far as that can be told without reading its weights."""
        made = self.model.sample is not None or self.model.random_weights
        named: Any = self.loading.dtype or self.loading.config.dtype or (torch.float32 if made else None)
        return str(named).removeprefix("torch.") if named else "the dtype of its weights"

    @property
    def options(self) -> Mapping[str, str]:
        """The recipe's options as they are in force."""
        return {name: str(value) for name, value in self.recipe.options.items()}


def prepare(request: Request) -> Prepared:
    """Understand a request's model and recipe.

    Raises what `find_recipe` and `plan_loading` raise, RecipeMismatch for another family of models, BadModelFolder
    for weights that are missing or damaged, NoLoss for a task that is to be trained and has no labels, and
    EnvironmentLacks if the request is strict and this machine lacks a part of the recipe.
    """
    recipe = find_recipe(request.recipe, request.options)
    model = with_placement(with_sample(request.model, recipe), recipe, request.target)
    device = torch.device(cast(str, model.device))
    transforms = usable_transforms(recipe, request.target, device)
    named = candidates(recipe.all_executors(), request.target, device)
    constant = without_ranges(named) if request.dynamic else ()
    degraded = as_facts((*recipe.degraded(request.target, device), *lost_fusion(named), *constant))
    if request.strict:
        require_not_degraded(recipe, degraded)
    with quiet_transformers():
        loading = plan_loading(model)
        refuse_other_family(recipe, loading)
        require_weights(loading, model)
    if request.train:
        require_labels(loading.task)
    return Prepared(recipe, model, loading, transforms, named, degraded)


def with_sample(model: ModelRequest, recipe: Recipe) -> ModelRequest:
    """The request, for the recipe's own sample where it names no model."""
    if model.model is not None or model.sample is not None:
        return model
    return replace(model, sample=sample_of(recipe))


def require_weights(loading: LoadingPlan, model: ModelRequest) -> None:
    """Raise BadModelFolder where a folder's weights are missing or damaged; the hub's may still have to come."""
    origin = loading.origin
    if isinstance(origin, FolderOrigin) and origin.hub is None and not model.random_weights:
        checkpoint_files(origin.folder)


def refuse_other_family(recipe: Recipe, loading: LoadingPlan) -> None:
    """Raise RecipeMismatch as early as the config can tell; `recipe.validate_all(model)` has the last word."""
    if any(one.families and loading.config.model_type not in one.families for one in recipe.recipes):
        recipe.validate_all(_ConfigOnly(loading.config))


class _ConfigOnly(torch.nn.Module):
    """A model with nothing but its config."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.config: Any = config


def degradation_texts(degraded: Iterable[Degraded | Degradation]) -> Iterator[tuple[str, str]]:
    """The parts that are lost, those with one reason together, and what would help."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in degraded:
        reasons.setdefault((one.reason, one.fix), []).append(one.part)
    for (reason, fix), parts in reasons.items():
        yield f"{', '.join(parts)}: {reason}", fix


def as_facts(lost: Iterable[Degradation]) -> tuple[Degraded, ...]:
    """Return degradations, parts of a recipe that are missing, as rows of the report."""
    return tuple(Degraded(part=one.part, reason=one.reason, fix=one.fix) for one in lost)


def require_not_degraded(recipe: Recipe, degraded: tuple[Degraded, ...]) -> None:
    """Raise EnvironmentLacks if this machine lacks a part of the recipe."""
    if degraded:
        texts, fixes = zip(*degradation_texts(degraded), strict=True)
        raise EnvironmentLacks(
            f"this machine lacks what {recipe.name} needs: {'; '.join(texts)}",
            fix=f"{'; '.join(dict.fromkeys(fixes))}; or leave --strict out",
        )
