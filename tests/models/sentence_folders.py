"""Folders of sentence-transformers with a tiny transformer, for the tests that read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from tests.models.real import write_tokenizer

WIDTH = 16
BERT = {
    "vocab_size": 64,
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
TANH = "torch.nn.modules.activation.Tanh"

Settings = Mapping[str, Any]


def write_sentence_folder(
    root: Path,
    stages: Sequence[tuple[str, Settings]],
    *,
    family: str = "bert",
    config: Settings = BERT,
    inside: str = "",
    prefix: str = "sentence_transformers.models",
) -> Path:
    """Write a folder with a tiny transformer in the folder `inside`, and stages with random weights."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **config))
    model.save_pretrained(root / inside)
    write_tokenizer(root / inside)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "unk_token": "<unk>"}
    (root / inside / "tokenizer_config.json").write_text(json.dumps(settings))
    (root / inside / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": false}')
    entries = [{"idx": 0, "name": "0", "path": inside, "type": f"{prefix}.Transformer"}]
    for number, (kind, settings) in enumerate(stages, start=1):
        path = f"{number}_{kind}"
        entries.append({"idx": number, "name": str(number), "path": path, "type": f"{prefix}.{kind}"})
        write_stage(root / path, kind, settings)
    (root / "modules.json").write_text(json.dumps(entries))
    return root


def write_stage(folder: Path, kind: str, settings: Settings) -> None:
    """Write the config of a stage, and random weights for the stages that have weights."""
    folder.mkdir(parents=True)
    if settings:
        (folder / "config.json").write_text(json.dumps(settings))
    tensors = stage_weights(kind, settings)
    if tensors:
        save_file(tensors, folder / "model.safetensors")


def stage_weights(kind: str, settings: Settings) -> dict[str, torch.Tensor]:
    """Return random weights of a stage, by the names that sentence-transformers gives them."""
    if kind == "LayerNorm":
        return {"norm.weight": torch.rand(settings["dimension"]), "norm.bias": torch.rand(settings["dimension"])}
    if kind != "Dense":
        return {}
    layers = {"linear": nn.Linear(settings["in_features"], settings["out_features"], bias=settings.get("bias", True))}
    if settings.get("use_residual") and settings["in_features"] != settings["out_features"]:
        layers["residual"] = nn.Linear(settings["in_features"], settings["out_features"], bias=False)
    return {f"{name}.{key}": value for name, layer in layers.items() for key, value in layer.state_dict().items()}
