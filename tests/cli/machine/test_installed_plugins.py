"""A recipe and a transform of a separately installed package are found by their entry points."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import thunder_core as thunder_library
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest

TRANSFORM = '''"""A pass that says that it ran."""

from dataclasses import dataclass

from thunder_core import Transform


@dataclass(frozen=True)
class SayHello(Transform):
    """Give the computation a note."""

    words: str = "hello"

    def __call__(self, trace):
        return trace.having(trace.bound_symbols, made_by=f"say {self.words}")
'''
RECIPE = '''"""Operations as PyTorch runs them."""

from thunder_core import Recipe


class Plain(Recipe):
    """For models of all types."""

    def setup_executors(self):
        """PyTorch alone."""
        return ["torch"]
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution with a recipe and a transform, in the layout of pip."""
    site = tmp_path / "site"
    for name, source in (("polite_passes", TRANSFORM), ("polite_recipes", RECIPE)):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("")
        (site / name / ("greeting.py" if source is TRANSFORM else "plain.py")).write_text(source)
    facts = site / "polite-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: polite\nVersion: 1\n")
    points = "[thunder.transforms]\npasses = polite_passes\n[thunder.recipes]\nrecipes = polite_recipes\n"
    (facts / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    yield site
    for name in [name for name in sys.modules if name.startswith("polite_")]:
        del sys.modules[name]


def test_installed_plugins_contribute_to_an_artifact(thunder, here, llama, installed):
    added = 'SayHello(words="good morning")'
    options = ("--seq", "8", "--runs", "2", "--warmup", "0", "--quiet")
    done = thunder("optimize", llama, "--recipe", "plain", "--add-transform", added, "--out", "made", *options)
    assert done.status == 0, done.err
    manifest = json.loads((here / "made" / "manifest.json").read_text())
    assert manifest["recipe"] == "plain + greeting"
    assert "polite_passes" in json.dumps(manifest)
    files = [stage["file"] for program in manifest["programs"] for stage in program["stages"]]
    assert any("say-good-morning" in file for file in files), files
    model = load_model(ModelRequest(model=str(llama))).model
    ids = torch.arange(8)[None]
    with torch.no_grad():
        found, wanted = thunder_library.load(here / "made", model)(input_ids=ids), model(input_ids=ids)
    torch.testing.assert_close(found.logits, wanted.logits)
    listed = {row["name"] for row in thunder("recipes", "--json").json["recipes"]}
    assert "plain" in listed
