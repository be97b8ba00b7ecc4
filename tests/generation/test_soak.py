"""Prompts of changing lengths, paddings and batch sizes trace and keep nothing after the second prompt."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.generation.models import Uncompiled, greedy, model_of, prompt_of
from tests.generation.modes import continue_padded_prompts
from thunder_core.passes.transforms.static_cache import GenerateWithStaticCache

PROMPTS = 20
SETTLED = 2  # prompts, after which nothing is traced and no more objects are kept
TOLERATED = 8  # objects of one class: less than one per prompt
# Caches of abstract classes, which grow with the number of classes in eager too.
CACHES = ("ReferenceType", "builtin_function_or_method")


class UncompiledStatic(Uncompiled):
    """The static cache with the executor torch, which compiles no kernels."""

    def setup_transforms(self) -> Any:
        return (*super().setup_transforms(), GenerateWithStaticCache())


def sizes() -> list[tuple[int, int]]:
    """Batches of 1 to 8 prompts of 2 to 24 tokens. The first two batches have several prompts."""
    return [(1 + (count + 1) * 3 % 8, 2 + count * 7 % 23) for count in range(PROMPTS)]


def continued(model: Any, count: int, batch: int, length: int) -> torch.Tensor:
    """The continuations of prompts. Prompts with an odd number are padded on the left."""
    texts: torch.Tensor = (
        continue_padded_prompts(model, batch, length, max_new_tokens=5)
        if count % 2
        else greedy(model, prompt_of(batch, length), 5)
    )
    return texts


def living_objects() -> tuple[Counter[str], int]:
    """The objects that Python's collector knows, counted by class, and the bytes of all tensors' storages."""
    gc.collect()
    tensors = [
        tensor for tensor in gc.get_objects() if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    ]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    # Objects are counted before storages, because reading a storage creates a Python object that stays.
    return Counter(type(tensor).__qualname__ for tensor in gc.get_objects()), sum(storages.values())


@pytest.mark.parametrize(("family", "recipe"), [("llama", Uncompiled), ("llama", UncompiledStatic), ("t5", Uncompiled)])
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_prompts_of_all_sizes_trace_nothing_and_keep_nothing(family: str, recipe: type) -> None:
    model = model_of(family)
    compiled = thunder.compile(model, recipe)
    kept, programs = [], []
    for count, (batch, length) in enumerate(sizes(), start=1):
        assert torch.equal(continued(compiled, count, batch, length), continued(model, count, batch, length))
        if count in (SETTLED + 1, PROMPTS):
            kept.append(living_objects())
        programs.append(thunder.cache_misses(compiled))
    assert programs[SETTLED - 1 :] == programs[-1:] * (PROMPTS - SETTLED + 1), thunder.recompile_reasons(compiled)
    (objects, storages), (objects_at_last, storages_at_last) = kept
    grown = {
        name: count for name, count in (objects_at_last - objects).items() if count > TOLERATED and name not in CACHES
    }
    assert not grown
    assert storages_at_last <= storages
