"""Whole models of transformers match eager PyTorch for all lengths and batches, with few programs."""

from __future__ import annotations

import pytest

import thunder_core as thunder
from tests.families import FAMILIES
from tests.symbolic.families import run

SHAPES = ((2, 12), (1, 7), (4, 40), (2, 1), (1, 1))
MOST = {"t5": 3}  # number of programs that these shapes may need; 2 if not listed


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FAMILIES)
def test_few_programs_serve_all_lengths_and_batches(name: str) -> None:
    compiled = run(name, ("torch",), SHAPES, training=False)
    assert thunder.cache_misses(compiled) <= MOST.get(name, 2), thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_few_programs_train_at_all_lengths_and_batches(name: str) -> None:
    compiled = run(name, ("torch",), SHAPES, training=True)
    assert thunder.cache_misses(compiled) <= 3, thunder.recompile_reasons(compiled)
