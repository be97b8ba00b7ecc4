"""Damage: an artifact with any changed bytes is refused at once, before any of its code runs."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.artifact.damages import groups, manifest_of, reseal, restore
from tests.artifact.marked import VARIABLE, Scaled, X, artifact_of
from tests.cache.damages import damages as damages_of_the_cache
from thunder_core.foundation.errors import (
    ArtifactDamaged,
    ArtifactError,
    ArtifactForeign,
    ArtifactTooNew,
    ArtifactTooOld,
)
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.manifest import SCHEMA_VERSION

ALL = dict(groups())
MOST_SECONDS = 0.5  # CPU seconds, on a machine that also does other work


@pytest.fixture(scope="module")
def neighbour(kernels, tmp_path_factory) -> Path:
    """An artifact of a model with another constant and a longer kernel."""
    return artifact_of(3.0, kernels + b"\0", tmp_path_factory.mktemp("sound") / "neighbour.thunder")


@pytest.fixture
def folder(sound, neighbour, tmp_path) -> Path:
    """A copy that a test may damage, next to the other artifact."""
    shutil.copytree(neighbour, tmp_path / "neighbour.thunder")
    return Path(shutil.copytree(sound, tmp_path / "copy.thunder"))


@pytest.fixture
def mark(tmp_path, monkeypatch) -> Path:
    """The file that exists as soon as code of an artifact has run."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mark"))
    return tmp_path / "mark"


def test_damages_number_more_than_two_thousand():
    of_the_cache = len(list(damages_of_the_cache()))
    assert sum(map(len, ALL.values())) > 1500
    assert sum(map(len, ALL.values())) + of_the_cache > 2000


def test_undamaged_artifact_runs_its_code(folder, mark):
    """Without this check the other tests would prove nothing."""
    model = Scaled(2.0)
    loaded = thunder.load(folder, model, strict=True, weights=True)
    assert not mark.exists()  # nothing runs before the first call
    with torch.no_grad():
        torch.testing.assert_close(loaded(X), model(X))
    assert mark.read_text().split() in (["region"], ["library", "region"])
    weight = model.inner.weight
    torch.testing.assert_close(*(torch.autograd.grad(module(X).sum(), weight) for module in (loaded, model)))


@pytest.mark.parametrize("group", ALL)
def test_damaged_artifact_is_refused_before_its_code_runs(group, sound, folder, mark):
    model = Scaled(2.0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, damage in ALL[group].items():
        damage(folder)
        start = time.thread_time()
        with pytest.raises(ArtifactError) as refused:
            thunder.load(folder, model, weights=True)
        seconds = time.thread_time() - start
        assert refused.value.fix, name
        assert not mark.exists(), name
        assert seconds < MOST_SECONDS, (name, seconds, str(refused.value))
        restore(sound, folder)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("group", [group for group in ALL if "whole" in group or "any bit" in group])
def test_damaged_artifact_is_refused_with_a_model_that_keeps_its_own_weights(group, sound, folder, mark):
    for name, damage in ALL[group].items():
        damage(folder)
        with pytest.raises(ArtifactError):
            thunder.load(folder, Scaled(2.0))
        assert not mark.exists(), name
        restore(sound, folder)


def test_a_newer_schema(folder):
    content, newer = json.loads((folder / "manifest.json").read_text()), SCHEMA_VERSION + 1
    (folder / "manifest.json").write_text(json.dumps({**content, "schema_version": newer, "news": True}))
    with pytest.raises(ArtifactTooNew, match=f"reads schema {SCHEMA_VERSION}"):
        open_artifact(folder)


def test_an_older_schema(folder):
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, "schema_version": 1, "shell": {}}))
    with pytest.raises(
        ArtifactTooOld, match=f"has the schema 1; this version of Thunder reads schema {SCHEMA_VERSION}"
    ):
        open_artifact(folder)


def test_an_unknown_key_under_a_sound_digest(folder):
    content = json.loads((folder / "manifest.json").read_text())
    digest = content.pop("digest")
    text = json.dumps({**content, "colour": "red"}, indent=1, ensure_ascii=False)
    digest = digest_of(f"{text}\n".encode())
    (folder / "manifest.json").write_text(f'{text[:-2]},\n "digest": "{digest}"\n}}\n')
    with pytest.raises(ArtifactDamaged, match="colour"):
        open_artifact(folder)


def test_a_key_twice_under_a_sound_digest(folder):
    """JSON readers choose different ones of two equal keys."""
    text = (folder / "manifest.json").read_text().partition(',\n "digest"')[0]
    text = text.replace('"recipe"', '"recipe": "mine",\n "recipe"', 1)
    digest = digest_of(f"{text}\n}}\n".encode())
    (folder / "manifest.json").write_text(f'{text},\n "digest": "{digest}"\n}}\n')
    with pytest.raises(ArtifactDamaged, match="not in the form"):
        open_artifact(folder)


FOREIGN = {
    "instructions": ({}, ("avx2", "sse_of_tomorrow"), "this CPU lacks: sse_of_tomorrow"),
    "processor": ({"machine": "Linux riscv64 cpython-311"}, (), "run on Linux riscv64"),
    "PyTorch": ({"torch": "2.3.0"}, (), r"made with PyTorch 2\.3\.0"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_artifact_of_another_machine_is_distinguished_from_damage(kind, kernels, tmp_path, mark):
    changes, needs, words = FOREIGN[kind]
    folder = artifact_of(2.0, kernels, tmp_path / "foreign.thunder", needs)
    mark.unlink()
    reseal(folder, **changes)
    with pytest.raises(ArtifactForeign, match=words):
        thunder.load(folder, Scaled(2.0))
    assert not mark.exists()


def test_weights_that_do_not_fit_their_file_are_damage(folder, mark):
    facts = manifest_of(folder).weights
    for change in ({"offset": 1 << 40}, {"key": "nowhere"}, {"dtype": "load"}, {"stride": (-1, 1)}):
        weights = {**facts, "inner.weight": facts["inner.weight"].model_copy(update=change)}
        reseal(folder, weights=weights)
        with pytest.raises(ArtifactError):
            thunder.load(folder, Scaled(2.0), weights=True)
        assert not mark.exists()


def test_more_files_do_not_matter(folder):
    (folder / "notes.txt").write_text("mine")
    open_artifact(folder)
