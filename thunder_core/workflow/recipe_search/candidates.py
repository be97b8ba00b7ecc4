"""The candidates of a search: the sums of recipes that are for a model and a task, with dtypes and threads.

The order is the one in which they are tried: what mostly wins comes first, so that a short search tries it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import ThunderError
from thunder_core.foundation.options.quality import Quality
from thunder_core.passes.recipe import Recipe, lacks
from thunder_core.passes.transforms.quantize import Quantize
from thunder_core.workflow.pipeline.request.automatic import (
    ANY_MODULE,
    ANY_TRANSFORMER,
    GENERATION,
    choose_recipe,
)
from thunder_core.workflow.pipeline.request.recipes import recipe_class
from thunder_core.workflow.recipe_search.candidate import EAGER, Candidate, Excluded
from thunder_core.workflow.report.search import SearchBounds

FUSION = "inductor"
PACKED = "packed-linear"
NARROW = Quality(error=0.02, kl=0.005)  # what a narrower dtype may lose, as the recipe bf16 allows
NARROW_DTYPES = ("bfloat16", "float16")
# How far a candidate is from eager PyTorch: each change that somebody has to understand is a step.
UNFUSED, FUSED, EXTENDED, QUANTIZED = 1, 2, 3, 4
# Recipes that are no way to run a model faster, and why.
PURPOSES: Mapping[str, str] = {
    "debug": "it compares executors with eager PyTorch",
    "ddp": "it is for the processes of a process group",
    "fsdp": "it is for the processes of a process group",
    "nf4-lora": "it trains adapters, which are no part of this model",
}
FOR_TRAINING: Mapping[str, str] = {"max-memory-saving": "it recomputes values in the backward, and there is none"}


@dataclass(frozen=True)
class Ground:
    """The facts that candidates depend on: the model's type and dtype, the device, the task, and what is fixed."""

    model_type: str | None
    device: torch.device
    dtype: str
    train: bool = False
    generates: bool = False
    may_change_dtype: bool = True
    may_change_threads: bool = True
    bounds: SearchBounds = field(default_factory=SearchBounds)


def list_candidates(ground: Ground) -> tuple[list[Candidate], list[Excluded]]:
    """The candidates for a model in the order of trials, eager PyTorch first; and what does not apply, with reasons."""
    base = choose_recipe(ground.model_type, ground.device).names
    excluded = list(_other_families(ground, base))
    added, useless = _additions(ground, base)
    main = (*base, GENERATION) if ground.generates else base
    found = [
        Candidate(EAGER, 0, base),
        _sum(main, FUSED + ground.generates),
        *([_sum(base, FUSED)] if ground.generates else []),
        *_quantized(ground, main, added),
        *_narrow(ground, main),
        *_extended(ground, main, added),
        replace(_sum(main, UNFUSED, "without fusion"), without=(FUSION,)),
        *_threaded(ground, main),
    ]
    return found, [*excluded, *useless]


def _sum(recipes: tuple[str, ...], rank: int, *changes: str) -> Candidate:
    return Candidate(" ".join((" + ".join(recipes), *changes)), rank, recipes)


def _quantized(ground: Ground, base: tuple[str, ...], added: list[Recipe]) -> Iterator[Candidate]:
    """The recipes that quantize, with the bounds of the search in the place of their own where these are narrower."""
    for recipe in added:
        if not _quantizes(recipe):
            continue
        bounds = {"kl": ground.bounds.max_kl, "top1": ground.bounds.min_top1, "error": ground.bounds.max_error}
        stated = ((f"{recipe.title}.{name}", str(bound)) for name, bound in bounds.items() if _is_possible(name, bound))
        yield replace(_sum((*base, recipe.title), QUANTIZED), quantizes=True, options=tuple(stated))


def _is_possible(name: str, bound: float | None) -> bool:
    """Whether a recipe takes a bound, which for a distance is above zero."""
    return bound is not None and (name == "top1" or bound > 0)


def _narrow(ground: Ground, base: tuple[str, ...]) -> Iterator[Candidate]:
    """The model in a narrower dtype."""
    if ground.train or not ground.may_change_dtype or ground.dtype != "float32":
        return
    for dtype in NARROW_DTYPES:
        yield replace(_sum(base, EXTENDED, f"in {dtype}"), dtype=dtype, bound=NARROW)


def _extended(ground: Ground, base: tuple[str, ...], added: list[Recipe]) -> Iterator[Candidate]:
    """The other recipes that add to a recipe, and the executor whose kernels are chosen by measurement."""
    yield from (_sum((*base, recipe.title), EXTENDED) for recipe in added if not _quantizes(recipe))
    if ground.device.type == "cpu" and not ground.train:
        yield replace(_sum(base, EXTENDED, f"with {PACKED}"), executors=(PACKED,))


def _threaded(ground: Ground, base: tuple[str, ...]) -> Iterator[Candidate]:
    """Other numbers of threads than PyTorch chooses: one, half of the processors, and all."""
    if ground.device.type != "cpu" or not ground.may_change_threads:
        return
    processors = os.cpu_count() or 1
    for threads in dict.fromkeys((1, processors // 2, processors)):
        if threads > 0 and threads != torch.get_num_threads():
            words = f"with {threads} thread{'' if threads == 1 else 's'}"
            yield replace(_sum(base, EXTENDED, words), threads=threads)


def _other_families(ground: Ground, base: tuple[str, ...]) -> Iterator[Excluded]:
    """The recipes that are for some models alone and are not the chosen one."""
    for recipe in _recipes():
        if recipe.title in base or not (recipe.families or recipe.title in (ANY_MODULE, ANY_TRANSFORMER)):
            continue
        if recipe.families and ground.model_type not in recipe.families:
            reason = f"it is for {', '.join(recipe.families[:4])}"
        elif lacking := _missing(recipe, ground):
            reason = lacking
        else:
            reason = f"{base[0]} is the one that is chosen for {ground.model_type or 'this module'}"
        yield Excluded(_sum((recipe.title,), FUSED), reason)


def _missing(recipe: Recipe, ground: Ground) -> str:
    """The reason why this machine cannot run a part of a recipe; empty for none."""
    found = (lacks(need, "", ground.device) for _, need in recipe.all_requirements())
    return next((reason for reason in found if reason), "")


def _additions(ground: Ground, base: tuple[str, ...]) -> tuple[list[Recipe], list[Excluded]]:
    """The recipes that can be added to another one, and those of them that are of no use here."""
    added, excluded = [], []
    for recipe in _recipes():
        if recipe.families or recipe.title in (ANY_MODULE, ANY_TRANSFORMER, GENERATION):
            continue
        reason = _uselessness(recipe, ground)
        if reason:
            excluded.append(Excluded(_sum((*base, recipe.title), EXTENDED), reason))
        else:
            added.append(recipe)
    return added, excluded


def _uselessness(recipe: Recipe, ground: Ground) -> str:
    """The reason why a recipe is of no use for a task; empty where it may be."""
    if (reason := PURPOSES.get(recipe.title)) is not None:
        return reason
    if ground.train and _quantizes(recipe):
        return "it quantizes, and rounding has no derivative"
    if not ground.train and (reason := FOR_TRAINING.get(recipe.title)) is not None:
        return reason
    return ""


def _quantizes(recipe: Recipe) -> bool:
    return any(isinstance(transform, Quantize) for transform in recipe.all_transforms())


def _recipes() -> Iterator[Recipe]:
    """Every recipe that is installed and can be made without options."""
    for listed in plugins.listing("recipes"):
        if listed.reason is not None:
            continue
        try:
            yield recipe_class(listed.name)()
        except ThunderError:  # of another package, whose fault is told where it is named
            continue
