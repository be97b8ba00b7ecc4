"""Mistyped paths: a name that is similar to a folder's name is reported at once, without a request to the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from thunder_core.foundation.errors import ModelNotFound
from thunder_core.workflow.models.folder import hub, origin
from thunder_core.workflow.models.folder.origin import local_origin
from thunder_core.workflow.models.folder.similar_paths import similar_paths


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A working folder with models in it, some of them in a folder of their own."""
    for name in ("small-llama", "models/small-bert", "models/small-t5"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "gpt2-results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "_cached_file", lambda *_: None)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("small-lama", "small-llama"),
        ("./smal-llama", "small-llama"),
        ("models/smal-bert", "models/small-bert"),
        ("modles/small-bert", "models/small-bert"),
        ("./modles/smal-t5", "models/small-t5"),
    ],
)
def test_the_nearest_folder_is_named(models, name, meant):
    with pytest.raises(ModelNotFound) as caught:
        local_origin(name)
    assert f"did you mean {meant}" in caught.value.fix
    absolute = str(models / name)
    with pytest.raises(ModelNotFound, match="is not a valid Hub name") as caught:
        local_origin(absolute)
    assert str(models / meant) in caught.value.fix


def test_the_nearest_artifact_is_named(models):
    (models / "llama.thunder" / "traces").mkdir(parents=True)
    (models / "llama.thunder" / "manifest.json").write_text("{}")
    with pytest.raises(ModelNotFound) as caught:
        local_origin("lama.thunder")
    assert "did you mean llama.thunder" in caught.value.fix


def test_a_path_into_a_folder_that_exists_is_no_hub_name(models):
    with pytest.raises(ModelNotFound, match="there is no folder 'models/zzz'") as caught:
        local_origin("models/zzz")
    assert "hf download models/zzz" in caught.value.fix
    assert "did you mean" not in caught.value.fix


@pytest.mark.parametrize("name", ["gpt2", "acme/llama-7b", "bert-base-uncased"])
def test_a_name_that_is_like_no_model_here_is_the_hubs(models, name):
    assert local_origin(name) is None


def test_name_in_the_cache_is_a_model_of_the_hub_even_if_it_looks_like_a_path(models, monkeypatch):
    monkeypatch.setattr(origin, "is_cached", lambda name: True)
    assert local_origin("small-lama") is None
    monkeypatch.undo()


def test_a_revision_is_the_hubs(models):
    assert local_origin("small-lama", "main") is None


def test_neighbours_of_what_has_none(models):
    assert similar_paths(Path("zzz")) == []
    assert similar_paths(Path("/no/such")) == []
