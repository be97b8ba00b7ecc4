"""Whole models of transformers give what eager PyTorch gives for all lengths and batches, with few programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.families import FAMILIES, assert_same, inputs_for, sample

SHAPES = ((2, 12), (3, 14), (1, 7), (4, 40), (1, 23))
# How many programs may come of these shapes; 2 where nothing is said. The caches of a sliding window ask how it lies to
# the length, and ViT is traced for each size of its images.
MOST = {"vit": 4, "gemma2": 4, "phi3": 4, "mistral": 4}


def inputs_of(name: str, loaded: Any, batch: int, length: int) -> dict[str, Any]:
    """The inputs of a call: a padded batch, or images of one of two sizes."""
    if name == "vit":
        size = (32, 32) if length < 20 else (48, 40)
        return {"pixel_values": torch.randn(batch, 3, *size), "interpolate_pos_encoding": True}
    inputs = inputs_for(loaded, batch=batch, seq=length)
    if "attention_mask" in inputs:
        inputs["attention_mask"][0, -3:] = 0
    return inputs


@pytest.mark.parametrize("name", FAMILIES)
def test_few_programs_serve_all_lengths_and_batches(name: str) -> None:
    loaded = sample(name)
    compiled = thunder.jit(loaded.model, cache="symbolic values")
    with torch.no_grad():
        for batch, length in SHAPES:
            inputs = inputs_of(name, loaded, batch, length)
            assert_same(compiled(**inputs), loaded.model(**inputs))
    assert thunder.cache_misses(compiled) <= MOST.get(name, 2), thunder.recompile_reasons(compiled)
