"""Accidents with a model's folder: weights and a config that do not fit together or are damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.accidents.accident import Accident, World

SEQUENCE = "--task sequence-classification"
QUICK = "--seq 8 --validate-inputs 1 --no-benchmark --without inductor"
Change = Callable[[Path], object]


def config(**changes: object) -> Change:
    """Change entries of the config. Entries with the value `...` are removed."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        content = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))

    return change


def text(name: str, content: str | bytes) -> Change:
    """Write a file of the folder."""
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def weights(change: Callable[[dict], object]) -> Change:
    """Change the weights of the checkpoint."""

    def write(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return write


def cut(size: int) -> Change:
    """Truncate the file of the weights."""
    return lambda folder: os.truncate(folder / "model.safetensors", size)


def replaced_by(make: Callable[[Path], object], name: str = "model.safetensors") -> Change:
    """Replace the content of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def in_copy(of: str, change: Change) -> Callable[[World], None]:
    """Change a copy of one of the models."""

    def arrange(world: World) -> None:
        folder = Path(shutil.copytree(getattr(world, of), world.path("model")))
        change(folder)

    return arrange


def accident(name: str, change: Change, code: str, says: str, options: str = "", of: str = "llama") -> Accident:
    """An optimization of a changed copy of a model."""
    return Accident(f"model: {name}", f"optimize {{files}}/model {QUICK} {options}", code, says, in_copy(of, change))


def nothing(folder: Path) -> None:
    """Leave the copy as it is."""


ROWS: tuple[tuple[str, Change, str, str, str], ...] = (
    ("one layer of two", config(num_hidden_layers=1), "TH0205", "does not use: model.layers.1.", ""),
    ("one layer, another task", config(num_hidden_layers=1), "TH0205", "model.layers.1.", "--task feature-extraction"),
    ("no layers", config(num_hidden_layers=0), "TH0205", "does not use: model.layers.0.", ""),
    ("a layer too many", config(num_hidden_layers=3), "TH0205", "lacks 9 weights", ""),
    ("-1 layers", config(num_hidden_layers=-1), "TH0205", "describes -1 layers", ""),
    ("a million million layers", config(num_hidden_layers=10**12), "TH0702", "layers, whose modules", ""),
    ("layers as text", config(num_hidden_layers="two"), "TH0205", "is not a valid config of its family", ""),
    ("another width", config(hidden_size=8), "TH0205", "whose shape does not fit the config", ""),
    ("width 0", config(hidden_size=0), "TH0205", "", ""),
    ("no heads", config(num_attention_heads=0), "TH0205", "", ""),
    ("another vocabulary", config(vocab_size=65), "TH0205", "whose shape does not fit the config", ""),
    ("padding beyond the vocabulary", config(pad_token_id=64), "TH0205", "Padding_idx", ""),
    ("padding far beyond", config(pad_token_id=10**9), "TH0205", "Padding_idx", ""),
    ("the class of another family", config(architectures=["GPT2LMHeadModel"]), "TH0205", "of the family 'gpt2'", ""),
    ("the class of an encoder", config(architectures=["BertForMaskedLM"]), "TH0205", "of the family 'bert'", ""),
    ("the class of a near family", config(architectures=["MistralForCausalLM"]), "TH0205", "family 'mistral'", ""),
    ("a class that does not exist", config(architectures=["LamaForCausalLM"]), "TH0801", "LamaForCausalLM", ""),
    ("a family that does not exist", config(model_type="lama"), "TH0801", "the family 'lama'", ""),
    ("the family of another model", config(model_type="bert", architectures=...), "TH0205", "", ""),
    ("no family", config(model_type=...), "TH0205", "has no model_type", ""),
    ("a family that is a number", config(model_type=3), "TH0205", "has no model_type", ""),
    ("an unknown quantization", config(quantization_config={"quant_method": "mine"}), "TH0205", "(mine)", ""),
    (
        "another unknown one",
        config(quantization_config={"quant_method": "q", "bits": 4}),
        "TH0205",
        "unknown format",
        "",
    ),
    ("GPTQ", config(quantization_config={"quant_method": "gptq", "bits": 4}), "TH0205", "(gptq, 4 bits)", ""),
    ("a quantization without a method", config(quantization_config={}), "TH0205", "cannot be loaded", ""),
    ("a quantization that is text", config(quantization_config="gptq"), "TH0205", "not a valid config", ""),
    ("a quantization that is a list", config(quantization_config=[4]), "TH0205", "not a valid config", ""),
    ("an unknown activation", config(hidden_act="mine"), "TH0205", "", ""),
    ("a dtype that does not exist", config(dtype="float7"), "TH0205", "", ""),
    (
        "code of its own",
        config(auto_map={"AutoModel": "x.Y"}, architectures=["Y"]),
        "TH0210",
        "the folder's own Python code",
        "",
    ),
    ("code from the Hub", config(attn_implementation="someone/kernel"), "TH0210", "code from the Hub", ""),
    ("a config that is a list", text("config.json", "[]"), "TH0205", "is not a JSON object", ""),
    ("a config that is empty", text("config.json", ""), "TH0205", "is not JSON", ""),
    ("a config that is empty or not a string", text("config.json", b"\xff\xfe"), "TH0205", "is not JSON", ""),
    ("a config that nests", text("config.json", "[" * 9999), "TH0205", "is not JSON", ""),
    ("a config that is a folder", replaced_by(Path.mkdir, "config.json"), "TH0205", "", ""),
    ("a config that is a pipe", replaced_by(os.mkfifo, "config.json"), "TH0205", "is not a regular file", ""),
    ("no config", replaced_by(lambda path: None, "config.json"), "TH0205", "has no config.json", ""),
    ("no weights", replaced_by(lambda path: None), "TH0205", "has no weights", ""),
    ("weights that are a folder", replaced_by(Path.mkdir), "TH0205", "", ""),
    ("empty weights", cut(0), "TH0205", "is truncated", ""),
    ("weights of a few bytes", cut(5), "TH0205", "is truncated", ""),
    ("half a header", cut(100), "TH0205", "is truncated", ""),
    ("half the weights", cut(9000), "TH0205", "is truncated", ""),
    (
        "a pointer of Git LFS",
        text("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"),
        "TH0205",
        "LFS",
        "",
    ),
    ("weights that are text", text("model.safetensors", "hello world"), "TH0205", "", ""),
    ("a weight too few", weights(lambda found: found.pop("model.norm.weight")), "TH0205", "lacks 1 weight", ""),
    (
        "a weight too many",
        weights(lambda found: found.update(extra=found["model.norm.weight"].clone())),
        "TH0205",
        "does not use: extra",
        "",
    ),
    ("a head at random", nothing, "TH0205", "lacks 1 weight of LlamaForSequenceClassification: score", SEQUENCE),
    ("another head at random", nothing, "TH0205", "--allow-random-weights", "--task token-classification"),
    ("the wrong name for it", nothing, "TH0205", "lacks 1 weight", f"{SEQUENCE} --allow-random-weights classifier"),
    ("a task of another kind", nothing, "TH0201", "there is no model of the family", "--task image-classification"),
    ("a task that does not exist", nothing, "TH0202", "there is no task called", "--task poetry"),
    ("more positions than there are", nothing, "TH0209", "", "--cache 100000"),
    ("the recipe of another family", nothing, "TH0208", "is for bert", "--recipe hf-bert"),
)
ALLOWED: tuple[tuple[str, Change, str, str], ...] = (
    (
        "a head at random that is named",
        nothing,
        "but 1 weight of LlamaForSequenceClassification not in the checkpoint, so initialized at random",
        f"{SEQUENCE} --allow-random-weights score",
    ),
    (
        "a layer that is left out by name",
        config(num_hidden_layers=1),
        "but 9 weights of the checkpoint not used by LlamaForCausalLM",
        "--allow-unused-weights model.layers.1",
    ),
    (
        "a head that is not wanted",
        nothing,
        "but 1 weight of the checkpoint not used by LlamaModel: lm_head",
        "--task feature-extraction",
    ),
)
BERT: tuple[tuple[str, Change, str, str, str], ...] = (
    ("BERT's head at random", nothing, "TH0205", "bert.pooler.dense, classifier", SEQUENCE),
    ("BERT's pooler at random", nothing, "TH0205", "pooler", "--task feature-extraction"),
    ("BERT without its layers", config(num_hidden_layers=1), "TH0205", "bert.encoder.layer.1", ""),
    ("BERT of another class", config(architectures=["RobertaForMaskedLM"]), "TH0205", "of the family 'roberta'", ""),
)

MODELS = (
    *(accident(*row) for row in ROWS),
    *(accident(*row, of="bert") for row in BERT),
    *(accident(name, change, "", says, options) for name, change, says, options in ALLOWED),
)
