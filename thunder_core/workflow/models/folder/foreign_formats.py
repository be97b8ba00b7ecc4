"""Recognize folders and files that are not models in Hugging Face layout, and advise the user.

Formats are recognized by file names and JSON files. Nothing is loaded or unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from thunder_core.foundation.errors import BadModelFolder
from thunder_core.workflow.models.folder.folder import CONFIG_FILE, read_json

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "diffusion_pytorch_model.bin")
# The names of weights in diffusers folders.
DIFFUSERS_SINGLE = "diffusion_pytorch_model.safetensors"
DIFFUSERS_INDEX = "diffusion_pytorch_model.safetensors.index.json"
ADAPTER = "adapter_config.json"
PIPELINE = "model_index.json"
DISTRIBUTED = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
HUB_CACHE = re.compile(r"models--(.+?)--(.+)")
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
MAX_ENTRIES = 4_096  # the largest number of entries of a folder that are read
# The names of tasks in PEFT, and the classes that load their base models.
PEFT_CLASSES = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}
# Quantization formats whose weights are packed for the kernels of a special library.
PACKED_FORMATS = frozenset(
    {
        "aqlm", "auto-round", "awq", "eetq", "fbgemm_fp8", "fp_quant",
        "gptq", "higgs", "hqq", "quanto", "quark", "spqr", "vptq",
    }
)  # fmt: skip


class FormatAnswer(NamedTuple):
    """A description of a folder's content, and advice for the user."""

    holds: str
    fix: str


Recognizer = Callable[[Path], FormatAnswer | None]
RECOGNIZERS: list[Recognizer] = []


def register(recognizer: Recognizer) -> Recognizer:
    """Register a function that describes folders of one format; it returns None for other folders."""
    RECOGNIZERS.append(recognizer)
    return recognizer


def refuse_other_kinds(folder: Path) -> None:
    """Raise `BadModelFolder` for a folder in a recognized format that cannot be loaded as a model."""
    for recognizer in RECOGNIZERS:
        answer = recognizer(folder)
        if answer is not None:
            raise BadModelFolder(f"{folder} holds {answer.holds}", fix=answer.fix)


def require_config(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's config; raise `BadModelFolder`, with the folder's format, without a config."""
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
    """Whether a folder has the manifest and the traces of an artifact."""
    return (folder / "manifest.json").is_file() and (folder / "traces").is_dir()


@register
def recognize_artifact(folder: Path) -> FormatAnswer | None:
    """Recognize an artifact of `thunder optimize`."""
    if not is_artifact(folder):
        return None
    return FormatAnswer(
        "an artifact of Thunder, not a model",
        "name the model; `thunder bench`, `validate` and `inspect-trace` take artifacts, and `thunder.load` runs them",
    )


@register
def recognize_adapter(folder: Path) -> FormatAnswer | None:
    """Recognize a PEFT adapter. An adapter is loaded from a folder, but not from the Hub."""
    if not (folder / ADAPTER).is_file():
        return None
    config = read_json(folder / ADAPTER)
    base = config.get("base_model_name_or_path")
    adapter_type = str(config.get("peft_type") or "")
    auto = PEFT_CLASSES.get(str(config.get("task_type")), "AutoModel")
    load = f'{auto}.from_pretrained("{base or "BASE"}")'
    merge = f'PeftModel.from_pretrained({load}, "{folder}").merge_and_unload().save_pretrained("MERGED")'
    how = f"{adapter_type} by PEFT" if adapter_type else "by PEFT"
    return FormatAnswer(
        f"an adapter ({how}) for {base or 'an unnamed base model'}, not a complete model",
        "name a folder that has the adapter, as downloaded by `hf download NAME --local-dir FOLDER`; or merge it into "
        f"its base model and name the result: `{merge}`; or name only the base model" + (f": {base}" if base else ""),
    )


@register
def recognize_pipeline(folder: Path) -> FormatAnswer | None:
    """Recognize a diffusers pipeline. From a folder, its denoiser is loaded; from the Hub, it is not."""
    if not (folder / PIPELINE).is_file():
        return None
    name = read_json(folder / PIPELINE).get("_class_name") or "a pipeline"
    parts = [part for part in folders_with(folder, CONFIG_FILE) if "model_type" in read_json(Path(part) / CONFIG_FILE)]
    advice = f"name a part that is a model of transformers: {', '.join(parts[:3])}; " if parts else ""
    return FormatAnswer(
        f"a diffusers pipeline ({name}), not a model",
        f"{advice}name a folder that has the pipeline, as downloaded by `hf download NAME --local-dir FOLDER`; in "
        "Python `thunder.compile` takes any of its modules, for example `pipeline.unet`",
    )


@register
def recognize_quantized(folder: Path) -> FormatAnswer | None:
    """Recognize weights that are packed for the kernels of a special library."""
    settings = config_of(folder).get("quantization_config")
    method = str(settings.get("quant_method", "")) if isinstance(settings, Mapping) else ""
    if method not in PACKED_FORMATS or not isinstance(settings, Mapping):
        return None
    bits = settings.get("bits") or next((n for n in (4, 8) if settings.get(f"load_in_{n}bit")), None)
    how = f"{method}, {bits} bits" if bits else method
    return FormatAnswer(
        f"quantized weights ({how}), which this version of Thunder does not support",
        "name the folder of the original weights; or, with the library of this format installed, dequantize them: "
        '`model.dequantize()`, then `model.save_pretrained("NEW_FOLDER")`',
    )


@register
def recognize_separate_outliers(folder: Path) -> FormatAnswer | None:
    """Recognize 8-bit weights of bitsandbytes, whose layers multiply a data-dependent number of columns separately."""
    settings = config_of(folder).get("quantization_config")
    if not isinstance(settings, Mapping) or settings.get("quant_method") != "bitsandbytes":
        return None
    threshold = settings.get("llm_int8_threshold", 6.0)
    if not settings.get("load_in_8bit") or not threshold:
        return None
    return FormatAnswer(
        f"quantized weights (bitsandbytes, 8 bits), whose layers multiply columns with values above {threshold} "
        "separately: the number of these columns differs between calls, but the sizes in a program do not",
        'set "llm_int8_threshold" to 0.0 in the quantization_config of its config.json, if the quality without that '
        "suffices; or quantize the original weights with a recipe: --recipe int8-dynamic",
    )


@register
def recognize_distributed(folder: Path) -> FormatAnswer | None:
    """Recognize a distributed checkpoint, whose metadata is pickled."""
    if not any(DISTRIBUTED.fullmatch(name) for name in names_in(folder)):
        return None
    return FormatAnswer(
        "a distributed checkpoint, whose metadata is pickled",
        "if you trust it, load it and save it with `model.save_pretrained(NEW_FOLDER)`",
    )


def register_format(suffix: str, format_: str, fix: str) -> None:
    """Register a recognizer for folders whose weights are all in unsupported formats."""

    @register
    def recognizer(folder: Path) -> FormatAnswer | None:
        inside = [name for name in names_in(folder) if name.endswith(suffix)]
        inner = folder / suffix.lstrip(".")  # exporters write `onnx/model.onnx`
        inside += [f"{inner.name}/{name}" for name in names_in(inner) if name.endswith(suffix)]
        if not inside or has_weights(folder):
            return None
        shown = ", ".join(inside[:2]) + (", ..." if len(inside) > 2 else "")
        return FormatAnswer(f"weights in {format_} ({shown})", fix.format(folder=folder, file=inside[0]))


register_format(
    ".gguf",
    "GGUF, the format of llama.cpp",
    "name the folder of the original weights; or convert it, with the package gguf: "
    '`AutoModelForCausalLM.from_pretrained("{folder}", gguf_file="{file}").save_pretrained("NEW_FOLDER")`',
)
register_format(
    ".onnx",
    "ONNX",
    "name the folder of the original PyTorch weights; ONNX Runtime runs the exported model",
)
register_format(".h5", "TensorFlow's format", "name a folder with safetensors; transformers 4 can convert these")
register_format(".msgpack", "Flax's format", "name a folder with safetensors; transformers 4 can convert these")


@register
def recognize_original_layout(folder: Path) -> FormatAnswer | None:
    """Recognize Llama or Mistral in the original layout, with a `params.json`."""
    if not (folder / "params.json").is_file() or (folder / CONFIG_FILE).exists():
        return None
    return FormatAnswer(
        "a model in the layout of its makers (params.json), not in Hugging Face layout",
        "name the folder that has a config.json; or convert it, as "
        "`python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir FOLDER` does for Llama",
    )


@register
def recognize_hub_cache(folder: Path) -> FormatAnswer | None:
    """Recognize a model's folder in the Hub cache, which contains a folder for each version."""
    named = HUB_CACHE.fullmatch(folder.name)
    if named is None or not (folder / "snapshots").is_dir():
        return None
    return FormatAnswer("the Hub cache of a model", f"pass the Hub name of the model: {named[1]}/{named[2]}")


@register
def recognize_training_output(folder: Path) -> FormatAnswer | None:
    """Recognize the output folder of a training run, which contains checkpoints."""
    steps = sorted(int(match[1]) for name in names_in(folder) if (match := CHECKPOINT.fullmatch(name)))
    if not steps or (folder / CONFIG_FILE).exists():
        return None
    return FormatAnswer(
        "the checkpoints of a training run",
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


def describe_file(path: Path) -> str:
    """Describe a file that was named instead of a folder, by its suffix; return an empty string if it is unknown."""
    return FILES.get(path.suffix.lower(), "")


# ---- contents -------------------------------------------------------------------------------------------------


def names_in(folder: Path) -> list[str]:
    """Return the sorted names in a folder; an empty list if the folder cannot be listed."""
    try:
        return sorted(path.name for path in islice(folder.iterdir(), MAX_ENTRIES))
    except OSError:
        return []


def folders_with(folder: Path, file: str) -> list[str]:
    """Return the subfolders that contain a file with a name."""
    return [str(folder / name) for name in names_in(folder) if (folder / name / file).is_file()]


def has_weights(folder: Path) -> bool:
    """Whether a folder has PyTorch weights under the file names of transformers or diffusers."""
    names = (SINGLE_FILE, INDEX, DIFFUSERS_SINGLE, DIFFUSERS_INDEX, *PICKLED_FILES)
    return any((folder / name).is_file() for name in names)


def config_of(folder: Path) -> Mapping[str, Any]:
    """Return the content of a folder's config, or an empty mapping without a config."""
    return read_json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else {}
