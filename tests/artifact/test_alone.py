"""Models of every family load from an artifact alone: same weights, structure and results, without a checkpoint."""

from __future__ import annotations

import shutil

import pytest
import torch

import thunder_core as thunder
from tests.families import FAMILIES, assert_same, inputs_for, sample
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest


def assert_comes_back_alone(loaded, folder):
    compiled, inputs = thunder.jit(loaded.model), inputs_for(loaded)
    with torch.no_grad():
        torch.manual_seed(0)
        expected = compiled(**inputs)
        thunder.save(compiled, folder, include_weights=True)
        alone = thunder.load(folder, strict=True)
        torch.manual_seed(0)
        assert_same(alone(**inputs), expected)
    assert alone is not loaded.model
    mine, theirs = alone.state_dict(), loaded.model.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert alone.config.to_dict() == loaded.config.to_dict()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_loads_without_its_checkpoint(family, tmp_path):
    assert_comes_back_alone(sample(family), tmp_path / "a")


@pytest.mark.parametrize(("family", "dtype"), [("llama", "bfloat16"), ("t5", "float16"), ("bert", "float64")])
def test_a_checkpoint_that_is_gone(family, dtype, tmp_path):
    """The dtype differs from that of the checkpoint. T5 keeps some weights in float32 for every requested dtype."""
    sample(family).model.save_pretrained(tmp_path / "model")
    loaded = load_model(ModelRequest(model=str(tmp_path / "model"), dtype=dtype))
    shutil.rmtree(tmp_path / "model")
    assert_comes_back_alone(loaded, tmp_path / "a")
