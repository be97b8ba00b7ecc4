"""Validating an artifact again uses its recipe's tolerance, whether the recipe is available or not."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch

from tests.artifact.damages import reseal
from tests.pipeline.conftest import quick
from thunder_core.foundation.errors import OutOfTolerance, OutputExists
from thunder_core.passes.recipe import Plugin, Recipe, Tolerance
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.manifest import SIGNATURE
from thunder_core.workflow.pipeline import optimize, validate
from thunder_core.workflow.pipeline.validate import validate_artifact
from thunder_recipes.hf_llama import HFLlama


def test_a_sum_is_validated_from_its_artifact_alone(out):
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


@pytest.mark.parametrize("step", ["write_validation", "revise"])
def test_an_artifact_that_was_replaced_during_validation_is_kept(out, tmp_path, monkeypatch, step):
    optimize(quick(out, validate=False, benchmark=False))
    newer = shutil.copytree(out, tmp_path / "newer")
    reseal(newer, subject="another")
    expected = open_artifact(newer).manifest
    write = getattr(validate, step)

    def replaced(artifact, *rest):
        shutil.rmtree(out)
        newer.rename(out)
        return write(artifact, *rest)

    monkeypatch.setattr(validate, step, replaced)
    with pytest.raises(OutputExists, match="another artifact replaced it"):
        validate_artifact(out)
    assert open_artifact(out).manifest == expected


def test_a_signature_that_was_made_during_validation_is_reported_as_dropped(out, monkeypatch):
    optimize(quick(out, validate=False, benchmark=False))
    (out / "user").symlink_to("nowhere")  # a file of the user in the artifact's folder
    write_validation = validate.write_validation

    def signed(*arguments):
        (out / SIGNATURE).write_text("{}")
        return write_validation(*arguments)

    monkeypatch.setattr(validate, "write_validation", signed)
    assert validate_artifact(out).signature_dropped
    assert (out / "user").is_symlink()
    assert not (out / SIGNATURE).exists()
