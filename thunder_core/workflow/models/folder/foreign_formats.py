"""Folders and files of models that are none in Hugging Face layout: each kind is recognized, and told what to do.

Nothing is loaded and nothing unpickled: the names of files, and JSON, say what they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from thunder_core.foundation.errors import BadModelFolder
from thunder_core.workflow.models.folder.folder import CONFIG_FILE, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
ADAPTER = "adapter_config.json"
PIPELINE = "model_index.json"
DISTRIBUTED = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
HUB_CACHE = re.compile(r"models--(.+?)--(.+)")
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
MOST = 4_096  # entries of a folder that are looked at
# What PEFT calls tasks, and the classes that load their base models.
PEFT_CLASSES = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}
# Quantizations whose weights are packed for kernels of a library of their own.
PACKED = frozenset(
    {
        "aqlm", "auto-round", "awq", "eetq", "fbgemm_fp8", "fp_quant",
        "gptq", "higgs", "hqq", "quanto", "quark", "spqr", "vptq",
    }
)  # fmt: skip


class FormatAnswer(NamedTuple):
    """An answer to what a folder or a file holds, and what to do."""

    holds: str
    fix: str


Recognizer = Callable[[Path], FormatAnswer | None]
KINDS: list[Recognizer] = []


def kind(recognizer: Recognizer) -> Recognizer:
    """Enter a function into the table; it gives None for a folder of another kind."""
    KINDS.append(recognizer)
    return recognizer


def refuse_other_kinds(folder: Path) -> None:
    """Raise `BadModelFolder` for a folder of a kind that is recognized and cannot be loaded as a model."""
    for recognizer in KINDS:
        answer = recognizer(folder)
        if answer is not None:
            raise BadModelFolder(f"{folder} holds {answer.holds}", fix=answer.fix)


def require_config(folder: Path) -> dict[str, Any]:
    """The content of a folder's config; raises `BadModelFolder`, by its kind where it is recognized."""
    if not (folder / CONFIG_FILE).exists():
        refuse_other_kinds(folder)
        inner = folders_with(folder, CONFIG_FILE)
        if inner:
            raise BadModelFolder(
                f"{folder} has no {CONFIG_FILE}, but folders in it have one",
                fix=f"name one of these folders: {', '.join(inner[:3])}",
            )
    return read_json(folder / CONFIG_FILE)


# ---- folders --------------------------------------------------------------------------------------------------


def is_artifact(folder: Path) -> bool:
    """Whether a folder looks like an artifact: `inspect-trace`, `bench` and `validate` take these beside models."""
    return (folder / "manifest.json").is_file() and (folder / "traces").is_dir()


@kind
def artifact(folder: Path) -> FormatAnswer | None:
    """An artifact that `thunder optimize` wrote."""
    if not is_artifact(folder):
        return None
    return FormatAnswer(
        "an artifact of Thunder, not a model",
        "name the model; `thunder bench`, `validate` and `inspect-trace` take artifacts, and `thunder.load` runs them",
    )


@kind
def adapter(folder: Path) -> FormatAnswer | None:
    """An adapter of PEFT, which is of use with its base model alone."""
    if not (folder / ADAPTER).is_file():
        return None
    config = read_json(folder / ADAPTER)
    base = config.get("base_model_name_or_path")
    called = str(config.get("peft_type") or "")
    auto = PEFT_CLASSES.get(str(config.get("task_type")), "AutoModel")
    load = f'{auto}.from_pretrained("{base or "BASE"}")'
    merge = f'PeftModel.from_pretrained({load}, "{folder}").merge_and_unload().save_pretrained("MERGED")'
    how = f"{called} by PEFT" if called else "by PEFT"
    return FormatAnswer(
        f"an adapter ({how}) for {base or 'an unnamed base model'}, not a whole model",
        f"merge it into its base model and name the result: `{merge}`; or name only the base model"
        + (f": {base}" if base else ""),
    )


@kind
def pipeline(folder: Path) -> FormatAnswer | None:
    """A pipeline of diffusers, some of whose parts may be models of transformers."""
    if not (folder / PIPELINE).is_file():
        return None
    name = read_json(folder / PIPELINE).get("_class_name") or "a pipeline"
    parts = [part for part in folders_with(folder, CONFIG_FILE) if "model_type" in read_json(Path(part) / CONFIG_FILE)]
    of_parts = f"name a part that is a model of transformers: {', '.join(parts[:3])}; " if parts else ""
    return FormatAnswer(
        f"a pipeline of diffusers ({name}), not a model",
        f"{of_parts}in Python `thunder.compile` takes any of its modules, for example `pipeline.unet`",
    )


@kind
def part_of_pipeline(folder: Path) -> FormatAnswer | None:
    """A model of diffusers."""
    config = config_of(folder)
    if "_diffusers_version" not in config or "model_type" in config:
        return None
    return FormatAnswer(
        f"a model of diffusers ({config.get('_class_name')}), not of transformers",
        'load it with diffusers and compile it in Python: `thunder.compile(model, recipe="default")`',
    )


@kind
def quantized(folder: Path) -> FormatAnswer | None:
    """Weights that a library packed for its own kernels."""
    settings = config_of(folder).get("quantization_config")
    method = str(settings.get("quant_method", "")) if isinstance(settings, Mapping) else ""
    if method not in PACKED or not isinstance(settings, Mapping):
        return None
    bits = settings.get("bits") or next((n for n in (4, 8) if settings.get(f"load_in_{n}bit")), None)
    how = f"{method}, {bits} bits" if bits else method
    return FormatAnswer(
        f"quantized weights ({how}), which this version of Thunder does not support",
        "name the folder of the original weights; or, with the library of this format installed, dequantize them: "
        '`model.dequantize()`, then `model.save_pretrained("NEW_FOLDER")`',
    )


@kind
def outliers_apart(folder: Path) -> FormatAnswer | None:
    """Weights in 8 bits by bitsandbytes, whose layers multiply some columns apart: as many as the values tell."""
    settings = config_of(folder).get("quantization_config")
    if not isinstance(settings, Mapping) or settings.get("quant_method") != "bitsandbytes":
        return None
    threshold = settings.get("llm_int8_threshold", 6.0)
    if not settings.get("load_in_8bit") or not threshold:
        return None
    return FormatAnswer(
        f"weights that are quantized (bitsandbytes, 8 bits) for layers that multiply columns with values above "
        f"{threshold} apart: how many these are differs from call to call, and the sizes of a program do not",
        'set "llm_int8_threshold" to 0.0 in the quantization_config of its config.json, if the quality without that '
        "suffices; or quantize the weights from before by a recipe: --recipe int8-dynamic",
    )


@kind
def distributed(folder: Path) -> FormatAnswer | None:
    """A checkpoint of several processes, with a pickled description."""
    if not any(DISTRIBUTED.fullmatch(name) for name in names_in(folder)):
        return None
    return FormatAnswer(
        "a distributed checkpoint, whose metadata is pickled",
        "if you trust it, load it and save it with `model.save_pretrained(NEW_FOLDER)`",
    )


def other_format(suffix: str, format_: str, fix: str) -> None:
    """Enter the kind of folders whose weights are files of another format, and in ours there are none."""

    @kind
    def recognizer(folder: Path) -> FormatAnswer | None:
        inside = [name for name in names_in(folder) if name.endswith(suffix)]
        inner = folder / suffix.lstrip(".")  # exporters write `onnx/model.onnx`
        inside += [f"{inner.name}/{name}" for name in names_in(inner) if name.endswith(suffix)]
        if not inside or has_weights(folder):
            return None
        shown = ", ".join(inside[:2]) + (", ..." if len(inside) > 2 else "")
        return FormatAnswer(f"weights in {format_} ({shown})", fix.format(folder=folder, file=inside[0]))


other_format(
    ".gguf",
    "GGUF, the format of llama.cpp",
    "name the folder of the original weights; or convert it, with the package gguf: "
    '`AutoModelForCausalLM.from_pretrained("{folder}", gguf_file="{file}").save_pretrained("NEW_FOLDER")`',
)
other_format(
    ".onnx",
    "ONNX",
    "name the folder of the original PyTorch weights; ONNX Runtime runs the exported model",
)
other_format(".h5", "TensorFlow's format", "name a folder with safetensors; transformers 4 can convert these")
other_format(".msgpack", "Flax's format", "name a folder with safetensors; transformers 4 can convert these")


@kind
def original(folder: Path) -> FormatAnswer | None:
    """Llama or Mistral as their makers publish them."""
    if not (folder / "params.json").is_file() or (folder / CONFIG_FILE).exists():
        return None
    return FormatAnswer(
        "a model in its makers' own layout (params.json), not in Hugging Face's",
        "name the folder that has a config.json; or convert it, as "
        "`python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir FOLDER` does for Llama",
    )


@kind
def hub_cache(folder: Path) -> FormatAnswer | None:
    """A folder of the hub's cache, which has a folder for each version in it."""
    named = HUB_CACHE.fullmatch(folder.name)
    if named is None or not (folder / "snapshots").is_dir():
        return None
    return FormatAnswer("the Hub cache of a model", f"use the Hub name of the model: {named[1]}/{named[2]}")


@kind
def training(folder: Path) -> FormatAnswer | None:
    """A folder that a training wrote, with its checkpoints."""
    steps = sorted(int(found[1]) for name in names_in(folder) if (found := CHECKPOINT.fullmatch(name)))
    if not steps or (folder / CONFIG_FILE).exists():
        return None
    return FormatAnswer(
        "the checkpoints of a training",
        f"name one of the checkpoints: {folder / f'checkpoint-{steps[-1]}'} is the last",
    )


# ---- files ----------------------------------------------------------------------------------------------------

FILES: dict[str, str] = {
    ".gguf": "weights in GGUF, the format of llama.cpp",
    ".onnx": "a model in ONNX",
    ".pt": "pickled Python",
    ".pth": "pickled Python",
    ".bin": "pickled Python",
    ".ckpt": "pickled Python",
    ".h5": "weights in TensorFlow's format",
}


def held_by_file(path: Path) -> str:
    """The content of a file that was named in a folder's place, as far as its name tells; empty where it does not."""
    return FILES.get(path.suffix.lower(), "")


# ---- looking --------------------------------------------------------------------------------------------------


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted; none where it cannot be listed."""
    try:
        return sorted(path.name for path in islice(folder.iterdir(), MOST))
    except OSError:
        return []


def folders_with(folder: Path, file: str) -> list[str]:
    """The folders in a folder that hold a file of that name."""
    return [str(folder / name) for name in names_in(folder) if (folder / name / file).is_file()]


def has_weights(folder: Path) -> bool:
    """Whether a folder holds PyTorch's weights under the names that transformers gives them."""
    return any((folder / name).is_file() for name in (SINGLE, INDEX, *PICKLED))


def config_of(folder: Path) -> Mapping[str, Any]:
    """The content of a folder's config; empty where it has none."""
    return read_json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else {}
