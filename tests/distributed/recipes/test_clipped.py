"""Gradients of tensor parallelism are clipped together, on two and on four ranks."""

from __future__ import annotations

from tests.distributed.ranks import Ranks

MODULE = "tests.distributed.recipes.clipped"


def test_gradients_of_divided_and_full_parameters_are_clipped_together(ranks: Ranks) -> None:
    ranks.run(MODULE, "parts_are_clipped")


def test_gradients_of_parameters_on_two_meshes_are_clipped_together(four_ranks: Ranks) -> None:
    four_ranks.run(MODULE, "shards_of_parts_are_clipped")
