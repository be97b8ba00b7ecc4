"""Validating an artifact once more: by its recipe's tolerance, whether the recipe can be had or not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.pipeline.conftest import quick
from thunder_core.artifact import open_artifact
from thunder_core.errors import OutOfTolerance
from thunder_core.pipeline import optimize
from thunder_core.pipeline.validate import validate_artifact
from thunder_core.recipe import Plugin, Recipe, Tolerance
from thunder_recipes.hf_llama import HFLlama


def test_a_sum_is_validated_where_only_its_artifact_is(out):
    optimize(quick(out, HFLlama() + Plugin("mine"), validate=False, benchmark=False))
    assert open_artifact(out).manifest.recipe == "hf-llama + mine"
    assert validate_artifact(out).state == "validated"


def test_a_recipe_of_this_process_alone_keeps_its_tolerance(out):
    class Impossible(Recipe):
        def tolerance(self, dtype: torch.dtype) -> Tolerance:
            return dataclasses.replace(super().tolerance(dtype), times_eager=0.0, floor=0.0)

    optimize(quick(out, Impossible, validate=False, benchmark=False))
    with pytest.raises(OutOfTolerance):
        validate_artifact(out)
