"""Thunder's recipes without Inductor, which takes seconds for every new region."""

from __future__ import annotations

import pytest

from thunder_recipes.default import Default
from thunder_recipes.hf_llama3_hopper import HFLlama3Hopper
from thunder_recipes.hf_transformers import HFTransformers
from thunder_recipes.reduce_overhead import ReduceOverhead


def leave_inductor_out(patch: pytest.MonkeyPatch) -> None:
    """Take Inductor out of the recipes' executors until the patch is undone."""
    for recipe in (Default, HFTransformers, HFLlama3Hopper, ReduceOverhead):
        patch.setattr(recipe, "executors", tuple(name for name in recipe.executors if name != "inductor"))
