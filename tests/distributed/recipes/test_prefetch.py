"""The recipe fsdp gathers parameters as early as a limit of gathered bytes allows."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import Ranks

CASES = (
    "gathers_as_early_as_the_limit_allows",
    "saved_parameters_stay_alive",
    "memory_follows_the_limit",
    "memory_of_the_backward_follows_the_limit",
    "gradients_count",
    "memory_is_at_most_that_of_fsdp2",
    "bad_limits_are_refused",
)


@pytest.mark.parametrize("case", CASES)
def test_prefetch(ranks: Ranks, case: str) -> None:
    ranks.run("tests.distributed.recipes.prefetch", case)
