"""Names of the Hugging Face Hub are loaded from its cache, or downloaded unless the network is forbidden."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants

from tests.models.sentence_folders import write_sentence_folder
from tests.models.weights import same_weights
from thunder_core.foundation.errors import BadModelFolder, ModelNotFound
from thunder_core.workflow.models.loading.load import load_model, rebuild_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.models.sentences.folder import files_of_modules

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty cache of the hub, offline, where opening a socket is an error."""

    def refuse(*_args, **_kwargs):
        pytest.fail("a socket was opened")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tmp_path / "hub"


def put_into_cache(cache, name, folder):
    """Lay a folder into the cache as the hub's client does, and give the snapshot's folder."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return shutil.copytree(folder, repository / "snapshots" / COMMIT)


@pytest.mark.parametrize("shards", [None, "200KB"])
def test_a_hub_name_is_found_in_the_cache_without_a_network(hub_cache, saved, shards):
    put_into_cache(hub_cache, "acme/tiny", saved("llama", shards))
    loaded = load_model(ModelRequest(model="acme/tiny"))
    assert (loaded.source["kind"], loaded.source["name"], loaded.source["commit"]) == ("hub", "acme/tiny", COMMIT)
    assert same_weights(loaded.model, load_model(ModelRequest(sample=SAMPLES["llama"])).model)
    assert same_weights(loaded.model, rebuild_model(loaded.source).model)


def test_cached_files_are_used_without_the_network_even_online(hub_cache, saved, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    put_into_cache(hub_cache, "acme/tiny", saved("llama"))
    assert load_model(ModelRequest(model="acme/tiny")).task == "causal-lm"


def test_a_hub_name_that_is_not_cached_says_how_to_get_it(hub_cache):
    with pytest.raises(ModelNotFound) as raised:
        load_model(ModelRequest(model="acme/tiny"))
    assert "HF_HUB_OFFLINE is set" in raised.value.what
    assert str(hub_cache) in raised.value.what
    assert "hf download acme/tiny" in raised.value.fix
    assert (raised.value.code, raised.value.status) == ("TH0204", 2)
    assert not hub_cache.exists()


@pytest.mark.parametrize("shards", [None, "200KB"])
def test_a_cached_config_without_all_weights_says_how_to_get_them(hub_cache, saved, shards):
    snapshot = put_into_cache(hub_cache, "acme/tiny", saved("llama", shards))
    lost = min(snapshot.glob("*.safetensors"))
    lost.unlink()
    with pytest.raises(ModelNotFound, match=f"is incomplete .* it lacks {lost.name}") as raised:
        load_model(ModelRequest(model="acme/tiny"))
    assert "run `hf download acme/tiny` on a machine" in raised.value.fix
    assert load_model(ModelRequest(model="acme/tiny", random_weights=True)).task == "causal-lm"


@pytest.mark.parametrize("shards", [None, "200KB"])
def test_online_what_is_not_cached_is_downloaded(hub_cache, saved, monkeypatch, shards):
    asked = []

    def download(name, filename, *, revision, cache_dir):
        asked.append((filename, revision))
        if not (saved("llama", shards) / filename).is_file():
            raise huggingface_hub.errors.EntryNotFoundError(filename)
        target = hub_cache / "models--acme--tiny" / "snapshots" / COMMIT / filename
        target.parent.mkdir(parents=True, exist_ok=True)
        return shutil.copy(saved("llama", shards) / filename, target)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    loaded = load_model(ModelRequest(model="acme/tiny", revision="v1"))
    assert loaded.source["commit"] == COMMIT
    assert asked[0] == ("config.json", "v1")
    assert {revision for _, revision in asked[1:]} == {COMMIT}
    assert {name for name, _ in asked} >= {path.name for path in saved("llama", shards).glob("*.safetensors")}


def test_online_the_stages_of_a_sentence_model_are_downloaded(hub_cache, tmp_path, monkeypatch):
    dense = {"in_features": 16, "out_features": 8, "activation_function": "torch.nn.Tanh"}
    folder = write_sentence_folder(tmp_path / "model", [("Pooling", {"pooling_mode": "mean"}), ("Dense", dense)])

    def download(name, filename, *, revision, cache_dir):
        if not (folder / filename).is_file():
            raise huggingface_hub.errors.EntryNotFoundError(filename)
        target = hub_cache / "models--acme--tiny" / "snapshots" / COMMIT / filename
        target.parent.mkdir(parents=True, exist_ok=True)
        return shutil.copy(folder / filename, target)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    loaded = load_model(ModelRequest(model="acme/tiny"))
    assert loaded.task == "sentence-similarity"
    assert same_weights(loaded.model, load_model(ModelRequest(model=str(folder))).model)


@pytest.fixture
def transformer_in_cache(hub_cache, tmp_path):
    """A folder of sentence-transformers whose transformer alone is in the cache, as `AutoModel` leaves it."""
    folder = write_sentence_folder(tmp_path / "model", [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})])
    snapshot = put_into_cache(hub_cache, "acme/tiny", folder)
    (snapshot / "modules.json").unlink()
    for stage in snapshot.glob("[1-9]_*"):
        shutil.rmtree(stage)
    return folder, snapshot


def test_online_the_stages_of_a_cached_transformer_are_downloaded(transformer_in_cache, monkeypatch):
    folder, snapshot = transformer_in_cache

    def download(name, filename, *, revision, cache_dir):
        if not (folder / filename).is_file():
            raise huggingface_hub.errors.EntryNotFoundError(filename)
        (snapshot / filename).parent.mkdir(parents=True, exist_ok=True)
        return shutil.copy(folder / filename, snapshot / filename)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    loaded = load_model(ModelRequest(model="acme/tiny"))
    assert loaded.task == "sentence-similarity"
    assert same_weights(loaded.model, load_model(ModelRequest(model=str(folder))).model)


def test_a_hub_out_of_reach_is_no_error_where_the_weights_are_cached(transformer_in_cache, monkeypatch):
    def download(name, filename, *, revision, cache_dir):
        raise huggingface_hub.errors.LocalEntryNotFoundError(filename)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert any("has stages" in note for note in load_model(ModelRequest(model="acme/tiny")).notes)


@pytest.mark.parametrize(("task", "is_noted"), [(None, True), ("feature-extraction", False)])
def test_offline_a_note_says_that_a_cached_transformer_may_have_stages(transformer_in_cache, task, is_noted):
    loaded = load_model(ModelRequest(model="acme/tiny", task=task))
    assert loaded.task == "feature-extraction"
    assert any("does not show whether acme/tiny has stages" in note for note in loaded.notes) == is_noted


def test_a_cached_transformer_without_stages_on_the_hub_has_no_note(transformer_in_cache, hub_cache):
    (marks := hub_cache / "models--acme--tiny" / ".no_exist" / COMMIT).mkdir(parents=True)
    (marks / "modules.json").touch()
    assert not any("has stages" in note for note in load_model(ModelRequest(model="acme/tiny")).notes)


def test_a_quantized_model_of_the_hub_is_not_downloaded(hub_cache, saved):
    snapshot = put_into_cache(hub_cache, "acme/tiny", saved("llama"))
    (snapshot / "model.safetensors").unlink()
    config = json.loads((snapshot / "config.json").read_text())
    (snapshot / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(BadModelFolder, match=r"quantized weights \(gptq\)"):
        load_model(ModelRequest(model="acme/tiny"))


def test_an_adapter_of_the_hub_names_its_base_model(hub_cache, monkeypatch):
    def download(name, filename, **_):
        if filename != "adapter_config.json":
            raise huggingface_hub.errors.EntryNotFoundError(filename)
        target = hub_cache / filename
        target.parent.mkdir(parents=True)
        target.write_text('{"peft_type": "LORA", "base_model_name_or_path": "acme/tiny"}')
        return str(target)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(BadModelFolder, match="for acme/tiny, not a complete model"):
        load_model(ModelRequest(model="acme/adapter"))


def test_a_hub_that_cannot_be_reached_is_not_the_users_setting(hub_cache, monkeypatch):
    def download(*_args, **_kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(ModelNotFound, match="the hub cannot be reached"):
        load_model(ModelRequest(model="acme/tiny"))


@pytest.mark.parametrize(
    ("kind", "said", "fix"),
    [
        ("GatedRepoError", "is gated", "hf auth login"),
        ("RepositoryNotFoundError", "does not exist on the Hub, or is private", "check the name"),
        ("RevisionNotFoundError", "has no revision 'v9'", "branch, tag or commit"),
        ("HfHubHTTPError", "could not be downloaded: 500", "check the network"),
    ],
)
def test_refusal_of_the_hub_is_reported(hub_cache, monkeypatch, kind, said, fix):
    def download(*_args, **_kwargs):
        raise getattr(huggingface_hub.errors, kind)("500 Server Error", response=Mock(headers={}))

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(ModelNotFound) as raised:
        load_model(ModelRequest(model="acme/tiny", revision="v9"))
    assert said in raised.value.what
    assert fix in raised.value.fix


def test_network_error_without_a_message_is_named_by_its_class(hub_cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Mock(side_effect=TimeoutError()))
    with pytest.raises(ModelNotFound, match="could not be downloaded: TimeoutError"):
        load_model(ModelRequest(model="acme/tiny"))


def test_code_that_cannot_be_downloaded_is_named(hub_cache, saved, monkeypatch):
    put_into_cache(hub_cache, "acme/tiny", saved("llama"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=ConnectionError("connection reset")))
    with pytest.raises(ModelNotFound, match="could not be downloaded: connection reset"):
        load_model(ModelRequest(model="acme/tiny", trust_remote_code=True))


def test_empty_list_of_modules_has_no_files(tmp_path):
    (tmp_path / "modules.json").write_text("[]")
    assert files_of_modules(tmp_path) == ()


def test_a_cache_that_cannot_be_used_is_named(hub_cache, monkeypatch):
    def download(*_args, **_kwargs):
        raise NotADirectoryError(20, "Not a directory", "/dev/null/token")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(ModelNotFound, match="/dev/null/token: Not a directory") as raised:
        load_model(ModelRequest(model="acme/tiny"))
    assert "HF_HOME" in raised.value.fix


def test_the_environment_names_the_cache_and_forbids_the_network(saved, tmp_path):
    put_into_cache(tmp_path / "home" / "hub", "acme/tiny", saved("llama"))
    program = (
        "import socket\n"
        "def refuse(*a, **k): raise SystemExit('a socket was opened')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from thunder_core.foundation.errors import ModelNotFound\n"
        "from thunder_core.workflow.models.loading.load import load_model\n"
        "from thunder_core.workflow.models.request.request import ModelRequest\n"
        "print(load_model(ModelRequest(model='acme/tiny')).source['commit'])\n"
        "try: load_model(ModelRequest(model='acme/other'))\n"
        "except ModelNotFound as error: print(error.code)\n"
    )
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path.cwd()),
    }
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (ran.stdout.split(), ran.stderr) == ([COMMIT, "TH0204"], "")
