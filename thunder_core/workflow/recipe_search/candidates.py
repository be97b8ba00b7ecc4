"""List the candidates of a search: combinations of recipes, dtypes and threads for a model and a task.

Candidates are listed in the order of their trials. Candidates that usually win come first, so that a short search
tries them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from thunder_core.backend.claiming.executor import find_executor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import ThunderError
from thunder_core.foundation.options.quality import Quality
from thunder_core.passes.recipe import Recipe, unmet_reason
from thunder_core.passes.transforms.quantize import Quantize
from thunder_core.workflow.pipeline.request.automatic import (
    ANY_MODULE,
    ANY_TRANSFORMER,
    GENERATION,
    choose_recipe,
)
from thunder_core.workflow.pipeline.request.recipes import recipe_class
from thunder_core.workflow.recipe_search.candidate import EAGER, Candidate, ExcludedCandidate
from thunder_core.workflow.report.search import SearchBounds

FUSION = "inductor"
PACKED_LINEAR = "packed-linear"
NARROW_DTYPE_QUALITY = Quality(error=0.02, kl=0.005)  # the largest loss for a narrower dtype, as in the recipe bf16
NARROW_DTYPES = ("bfloat16", "float16")
# The ranks of candidates: their distance from eager PyTorch, in changes that users have to understand.
UNFUSED, FUSED, EXTENDED, QUANTIZED = 1, 2, 3, 4
# Recipes that do not make inference or a training step of one process faster, with the reasons.
PURPOSES: Mapping[str, str] = {
    "debug": "it compares executors with eager PyTorch",
    "nf4-lora": "it trains adapters, which this model does not have",
}
FOR_TRAINING: Mapping[str, str] = {
    "max-memory-saving": "it recomputes values in the backward, and inference has no backward"
}
FOR_INFERENCE: Mapping[str, str] = {"freeze": "it packs weights once, and training changes them at each step"}
FOR_CPU = frozenset({"freeze"})


@dataclass(frozen=True)
class SearchContext:
    """The facts that candidates depend on: the model's type and dtype, the device, the task and the bounds.

    `may_change_dtype` and `may_change_threads` are False if the user has set the dtype or the number of threads.
    """

    model_type: str | None
    device: torch.device
    dtype: str
    train: bool = False
    generates: bool = False
    may_change_dtype: bool = True
    may_change_threads: bool = True
    bounds: SearchBounds = field(default_factory=SearchBounds)


def list_candidates(context: SearchContext) -> tuple[list[Candidate], list[ExcludedCandidate]]:
    """Return the candidates for a model in the order of trials, and the excluded candidates with reasons.

    Eager PyTorch is the first candidate.
    """
    base = choose_recipe(context.model_type, context.device).names
    excluded = list(_other_families(context, base))
    added, useless = _addable_recipes(context, base)
    main = (*base, GENERATION) if context.generates else base
    candidates = [
        Candidate(EAGER, 0, base),
        _candidate(main, FUSED + context.generates),
        *([_candidate(base, FUSED)] if context.generates else []),
        *_quantized_candidates(context, main, added),
        *_narrow_candidates(context, main),
        *_extended_candidates(context, main, added),
        replace(_candidate(main, UNFUSED, "without fusion"), without=(FUSION, PACKED_LINEAR)),
        *_threaded_candidates(context, main),
    ]
    return candidates, [*excluded, *useless]


def _candidate(recipes: tuple[str, ...], rank: int, *changes: str) -> Candidate:
    return Candidate(" ".join((" + ".join(recipes), *changes)), rank, recipes)


def _quantized_candidates(context: SearchContext, base: tuple[str, ...], added: list[Recipe]) -> Iterator[Candidate]:
    """Yield a candidate for each recipe that quantizes. The bounds of the search replace the bounds of the recipe."""
    for recipe in added:
        if not _quantizes(recipe):
            continue
        bounds = {
            "kl": context.bounds.max_kl,
            "top1": context.bounds.min_top1,
            "error": context.bounds.max_error,
        }
        bounds_in_words = (
            (f"{recipe.title}.{name}", str(bound)) for name, bound in bounds.items() if _is_possible(name, bound)
        )
        yield replace(_candidate((*base, recipe.title), QUANTIZED), quantizes=True, options=tuple(bounds_in_words))


def _is_possible(name: str, bound: float | None) -> bool:
    """Whether a recipe accepts the bound: any top-1 agreement, or a distance above zero."""
    return bound is not None and (name == "top1" or bound > 0)


def _narrow_candidates(context: SearchContext, base: tuple[str, ...]) -> Iterator[Candidate]:
    """Yield candidates that convert the model to a narrower dtype."""
    if context.train or not context.may_change_dtype or context.dtype != "float32":
        return
    for dtype in NARROW_DTYPES:
        yield replace(_candidate(base, EXTENDED, f"in {dtype}"), dtype=dtype, bound=NARROW_DTYPE_QUALITY)


def _extended_candidates(context: SearchContext, base: tuple[str, ...], added: list[Recipe]) -> Iterator[Candidate]:
    """Yield candidates with the recipes that do not quantize, and one without the executor `packed-linear`."""
    yield from (_candidate((*base, recipe.title), EXTENDED) for recipe in added if not _quantizes(recipe))
    if not context.train and find_executor(PACKED_LINEAR).missing_on(context.device) is None:
        yield replace(_candidate(base, EXTENDED, f"without {PACKED_LINEAR}"), without=(PACKED_LINEAR,))


def _threaded_candidates(context: SearchContext, base: tuple[str, ...]) -> Iterator[Candidate]:
    """Yield candidates with numbers of threads that differ from PyTorch's: one, half of the processors, and all."""
    if context.device.type != "cpu" or not context.may_change_threads:
        return
    processors = os.cpu_count() or 1
    for threads in dict.fromkeys((1, processors // 2, processors)):
        if threads > 0 and threads != torch.get_num_threads():
            words = f"with {threads} thread{'' if threads == 1 else 's'}"
            yield replace(_candidate(base, EXTENDED, words), threads=threads)


def _other_families(context: SearchContext, base: tuple[str, ...]) -> Iterator[ExcludedCandidate]:
    """Yield the recipes for particular model families, except the base recipe, as excluded candidates."""
    for recipe in _recipes():
        if recipe.title in base or not (recipe.families or recipe.title in (ANY_MODULE, ANY_TRANSFORMER)):
            continue
        if recipe.families and context.model_type not in recipe.families:
            reason = f"it is for {', '.join(recipe.families[:4])}"
        elif missing := _reason_unavailable(recipe, context):
            reason = missing
        else:
            reason = f"{base[0]} is the recipe for {context.model_type or 'this module'}"
        yield ExcludedCandidate(_candidate((recipe.title,), FUSED), reason)


def _reason_unavailable(recipe: Recipe, context: SearchContext) -> str:
    """Return the reason why this machine cannot run a part of a recipe, or an empty string."""
    reasons = (unmet_reason(need, "", context.device) for _, need in recipe.all_requirements())
    return next((reason for reason in reasons if reason), "")


def _addable_recipes(context: SearchContext, base: tuple[str, ...]) -> tuple[list[Recipe], list[ExcludedCandidate]]:
    """Return the recipes that can be combined with the base recipe, and excluded recipes with the reasons."""
    added, excluded = [], []
    for recipe in _recipes():
        if recipe.families or recipe.title in (ANY_MODULE, ANY_TRANSFORMER, GENERATION):
            continue
        reason = _reason_against(recipe, context)
        if reason:
            excluded.append(ExcludedCandidate(_candidate((*base, recipe.title), EXTENDED), reason))
        else:
            added.append(recipe)
    return added, excluded


def _reason_against(recipe: Recipe, context: SearchContext) -> str:
    """Return the reason why a recipe is useless for the task, or an empty string."""
    if (reason := PURPOSES.get(recipe.title)) is not None:
        return reason
    if any(transform.is_parallel for transform in recipe.all_transforms()):
        return "it is for the processes of a process group"
    if context.train and _quantizes(recipe):
        return "a search for a training step tries no recipe that quantizes"
    by_task = FOR_INFERENCE if context.train else FOR_TRAINING
    if (reason := by_task.get(recipe.title)) is not None:
        return reason
    if recipe.title in FOR_CPU and context.device.type != "cpu":
        return "its kernels are for a CPU"
    return ""


def _quantizes(recipe: Recipe) -> bool:
    return any(isinstance(transform, Quantize) for transform in recipe.all_transforms())


def _recipes() -> Iterator[Recipe]:
    """Yield every installed recipe that can be constructed without options."""
    for listed in plugins.listing("recipes"):
        if listed.reason is not None:
            continue
        try:
            yield recipe_class(listed.name)()
        except ThunderError:  # a broken recipe of another package; the error is reported if the user names the recipe
            continue
