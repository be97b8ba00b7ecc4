"""Hooks of parameters run for the parts of parameters that ranks keep."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.ranks import Ranks

MODULE = "tests.distributed.recipes.parameter_hooks"
CASES: dict[str, tuple[Any, ...]] = {
    "fsdp trains in the backward": ("shards_are_trained_in_the_backward", 1),
    "fsdp trains in the last backward": ("shards_are_trained_in_the_backward", 2),
    "tensor-parallel trains in the backward": ("parts_are_trained_in_the_backward",),
    "hooks scale gradients of fsdp": ("hooks_scale_gradients", "fsdp"),
    "hooks scale gradients of tensor-parallel": ("hooks_scale_gradients", "tensor-parallel"),
    "hooks from before the compilation run": ("hooks_from_before_compilation_run",),
    "hooks from before the allocation run": ("hooks_from_before_the_allocation_run",),
    "gradients that a hook spoils are refused": ("gradients_that_a_hook_spoils_are_refused",),
    "gradients of ddp that a hook spoils are refused": ("gradients_of_ddp_that_a_hook_spoils_are_refused",),
    "placements of gradients are restored": ("placements_of_gradients_are_restored",),
    "hooks of ddp run before gradients are averaged": ("hooks_run_before_gradients_are_averaged", 1),
    "hooks of ddp run before accumulated gradients are averaged": ("hooks_run_before_gradients_are_averaged", 2),
    "hooks of several parameters are refused": ("hooks_of_several_parameters_are_refused",),
}


@pytest.mark.parametrize("case", CASES)
def test_hooks_of_parameters(ranks: Ranks, case: str) -> None:
    ranks.run(MODULE, *CASES[case])
