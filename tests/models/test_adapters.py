"""Folders of PEFT adapters: the merged or kept adapter equals eager PEFT, and bad folders are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadModelFolder, BadOption, ModelNotFound, PackageMissing
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.loading.load import load_model, rebuild_model
from thunder_core.workflow.models.request.request import ModelRequest

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by a former name
LORA = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "target_modules": ["q_proj"], "r": 2}
ADAPTERS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "lora": ("llama", "LoraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}),
    "dora": ("llama", "LoraConfig", {"r": 4, "target_modules": "all-linear", "use_dora": True}),
    "ia3": ("llama", "IA3Config", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    "loha": ("llama", "LoHaConfig", {"r": 2, "target_modules": ["o_proj"]}),
    "head": (
        *("bert", "LoraConfig"),
        {"r": 2, "target_modules": ["query"], "task_type": "SEQ_CLS", "modules_to_save": ["classifier", "pooler"]},
    ),
    "images": ("vit", "LoraConfig", {"r": 2, "target_modules": ["q_proj"], "task_type": None}),
}


@pytest.fixture
def adapted(saved: Callable[..., Path], tmp_path: Path) -> Callable[[str], tuple[Path, torch.nn.Module]]:
    """A function that saves an adapter of `ADAPTERS` with random weights, and returns its folder and PEFT's model."""
    peft = pytest.importorskip("peft", reason="needs the package peft")

    def make(name: str) -> tuple[Path, torch.nn.Module]:
        sample, kind, settings = ADAPTERS[name]
        base = saved(sample)
        torch.manual_seed(0)
        auto = "AutoModelForSequenceClassification" if name == "head" else None
        config = transformers.AutoConfig.from_pretrained(base)
        model: Any = getattr(transformers, auto or config.architectures[0]).from_pretrained(base)
        if name == "images":
            settings = {**settings, "target_modules": [query_of(model)]}
        model = peft.get_peft_model(model, getattr(peft, kind)(**settings)).eval()
        for parameter in (each for each in model.parameters() if each.requires_grad):
            parameter.data += 0.05 * torch.randn_like(parameter)
        model.save_pretrained(tmp_path / name)
        return tmp_path / name, model

    return make


def query_of(model: torch.nn.Module) -> str:
    """Return the name of the layers of queries."""
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    return next(name for name in ("query", "q_proj") if name in names)


@pytest.mark.parametrize("mode", ["merge", "keep", None])
@pytest.mark.parametrize("name", ADAPTERS)
def test_outputs_match_peft(adapted, name, mode):
    folder, theirs = adapted(name)
    loaded = load_model(ModelRequest(model=str(folder), adapter=mode))
    inputs = example_inputs(loaded, batch=1 if name == "head" else 2, seq=12, seed=0)
    with torch.no_grad():
        ours, expected = loaded.model(**inputs).logits, theirs(**inputs).logits
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    is_kept = any(type(module).__module__.startswith("peft.") for module in loaded.model.modules())
    assert is_kept == (mode == "keep")
    assert [note for note in loaded.notes if "adapter" in note]
    assert not [caveat for caveat in loaded.caveats if "random" in caveat]


@pytest.mark.parametrize("mode", ["merge", "keep"])
def test_model_is_rebuilt_from_its_source(adapted, mode):
    folder, _ = adapted("lora")
    loaded = load_model(ModelRequest(model=str(folder), adapter=mode))
    again = rebuild_model(loaded.source)
    assert again.fingerprint == loaded.fingerprint
    assert all(torch.equal(*pair) for pair in zip(again.model.parameters(), loaded.model.parameters(), strict=True))


def test_only_the_adapter_is_trained(adapted):
    folder, theirs = adapted("lora")
    loaded = load_model(ModelRequest(model=str(folder), train=True))
    trained = {name for name, parameter in loaded.model.named_parameters() if parameter.requires_grad}
    expected = {name for name, parameter in theirs.named_parameters() if parameter.requires_grad}
    assert {f"base_model.model.{name}" for name in trained} == expected
    inputs = example_inputs(loaded, batch=2, seq=12, seed=0, labels=True)
    torch.testing.assert_close(loaded.model(**inputs).loss, theirs(**inputs).loss)
    again = rebuild_model(loaded.source, train=True)
    assert {name for name, parameter in again.model.named_parameters() if parameter.requires_grad} == trained
    assert again.fingerprint == loaded.fingerprint


def test_merged_adapter_is_not_trained(adapted):
    folder, _ = adapted("lora")
    with pytest.raises(BadOption, match="--adapter merge and --train"):
        load_model(ModelRequest(model=str(folder), adapter="merge", train=True))


def test_task_of_the_adapter_is_the_task(adapted):
    folder, _ = adapted("head")
    assert load_model(ModelRequest(model=str(folder))).task == "sequence-classification"


def test_base_model_may_be_next_to_the_adapter(adapted, saved):
    folder, _ = adapted("lora")
    (folder / "base").symlink_to(saved("llama"))
    replace_config(folder, base_model_name_or_path="base")
    assert load_model(ModelRequest(model=str(folder))).task == "causal-lm"


def replace_config(folder: Path, **values: object) -> None:
    content = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**content, **values}))


def rename_weights(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({name: tensor[:1].clone() for name, tensor in load_file(file).items()}, file)


BAD = {
    "unknown type": (lambda folder: replace_config(folder, peft_type="LORAX"), BadModelFolder, "LORAX"),
    "prompts": (lambda folder: replace_config(folder, peft_type="PROMPT_TUNING"), BadModelFolder, "PROMPT_TUNING"),
    "no base": (lambda folder: replace_config(folder, base_model_name_or_path=None), BadModelFolder, "no base model"),
    "missing base": (lambda folder: replace_config(folder, base_model_name_or_path="/x/y"), ModelNotFound, "'/x/y'"),
    "itself": (lambda folder: replace_config(folder, base_model_name_or_path="."), BadModelFolder, "its own folder"),
    "not on the Hub": (lambda folder: replace_config(folder, base_model_name_or_path="a/b"), ModelNotFound, "a/b"),
    "other layers": (lambda folder: replace_config(folder, target_modules=["nothing"]), BadModelFolder, "base model"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), BadModelFolder, "adapter_model"),
    "shapes": (rename_weights, BadModelFolder, "base model"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folder_is_refused(adapted, name):
    folder, _ = adapted("lora")
    spoil, kind, word = BAD[name]
    spoil(folder)
    with pytest.raises(kind) as caught:
        load_model(ModelRequest(model=str(folder)))
    assert word in caught.value.what


def test_adapters_of_each_other_are_refused(tmp_path):
    for name, base in (("first", "second"), ("second", "first")):
        (tmp_path / name).mkdir()
        config = {**LORA, "base_model_name_or_path": str(tmp_path / base)}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(BadModelFolder, match="an adapter itself"):
        load_model(ModelRequest(model=str(tmp_path / "first")))


def test_missing_peft_is_named(saved, tmp_path, monkeypatch):
    (tmp_path / "adapter_config.json").write_text(json.dumps({**LORA, "base_model_name_or_path": str(saved("llama"))}))
    installed = plugins.is_installed
    monkeypatch.setattr(plugins, "is_installed", lambda name: name != "peft" and installed(name))
    with pytest.raises(PackageMissing, match="needs the package peft"):
        load_model(ModelRequest(model=str(tmp_path)))


@pytest.mark.parametrize("config", [{}, {"peft_type": "LORA"}, {"base_model_name_or_path": "a/b"}])
def test_incomplete_config_is_refused_without_peft(tmp_path, config):
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(BadModelFolder, match="adapter"):
        load_model(ModelRequest(model=str(tmp_path)))


def test_adapter_option_without_an_adapter_is_refused(saved):
    with pytest.raises(BadOption, match="--adapter"):
        load_model(ModelRequest(model=str(saved("llama")), adapter="keep"))
