"""Recipes for parallel training on programs that autograd records."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.recipes.recorded import MODELS

CASES = "tests.distributed.recipes.recorded"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recipe", ["ddp", "fsdp"])
def test_gradients_are_averaged(ranks: Ranks, recipe: str, name: str) -> None:
    """A hook, or a second write to a buffer, keeps the program from having a backward of its own."""
    ranks.run(CASES, "has_eagers_gradients", recipe, name)


@pytest.mark.parametrize("recipe", ["ddp", "fsdp"])
def test_gradients_are_averaged_with_regions(ranks: Ranks, recipe: str) -> None:
    ranks.run(CASES, "has_eagers_gradients", recipe, "a hook", [])


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_divided_layers(ranks: Ranks, name: str) -> None:
    ranks.run(CASES, "tensor_parallel_has_eagers_gradients", name)


def test_a_compiled_layer_is_refused(ranks: Ranks) -> None:
    ranks.run(CASES, "ddp_refuses_a_compiled_layer")


@pytest.mark.parametrize("recipe", ["ddp", "fsdp"])
def test_ranks_that_use_other_parameters_are_reported(ranks: Ranks, recipe: str) -> None:
    ranks.run(CASES, "other_parameters_are_reported", recipe)
