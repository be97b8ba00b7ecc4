"""The example recipe in recipes/README.md works."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.families import assert_same, inputs_for, sample
from tests.readme import package_with_example
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.pipeline.request.recipes import find_recipe


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package_with_example(
        "recipes/README.md", "recipe_example", "careful_llama.py", "thunder.recipes", tmp_path, monkeypatch
    )
    listed = {listed_recipe.name: listed_recipe.summary for listed_recipe in plugins.listing("recipes")}
    assert listed["careful-llama"] == "Llama with a stricter tolerance."
    recipe = find_recipe("careful-llama", {"error_factor": "1.5"})
    assert recipe.name == "careful-llama"
    assert recipe.tolerance(torch.float32).times_eager == 1.5
    with pytest.raises(BadOption, match="error_factor"):
        find_recipe("careful-llama", {"error_factor": 0})
    loaded = sample("llama")
    inputs = inputs_for(loaded)
    with torch.no_grad():
        assert_same(thunder.compile(loaded.model, recipe=recipe)(**inputs), loaded.model(**inputs))
