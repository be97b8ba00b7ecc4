"""Sparse gradients in parallel training: recipes that would communicate them refuse the program."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.ranks import Ranks

MODULE = "tests.distributed.recipes.sparse_gradients"
CASES: dict[str, tuple[Any, ...]] = {
    "ddp refuses sparse gradients": ("sparse_gradients_are_refused", "ddp"),
    "fsdp refuses sparse gradients": ("sparse_gradients_are_refused", "fsdp"),
    "tensor-parallel leaves tables as they are": ("undivided_tables_have_sparse_gradients",),
}


@pytest.mark.parametrize("case", CASES)
def test_sparse_gradients(ranks: Ranks, case: str) -> None:
    ranks.run(MODULE, *CASES[case])
