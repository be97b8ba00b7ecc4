"""Build a transformers model, or a sentence model around one, from its class and config, without its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import RemoteCodeRefused
from thunder_core.tracing.ir.default_dtype import default_dtype
from thunder_core.tracing.ir.proxy import dtype_name
from thunder_core.tracing.library.sentences.model import SentenceModel
from thunder_core.workflow.models.folder.folder import code_of_the_hub
from thunder_core.workflow.models.loading.depth import require_depth
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.loading.outputs import follow_config
from thunder_core.workflow.models.loading.packed_weights import is_built_by_config, place_packed_layers
from thunder_core.workflow.models.request.dtype import parse_dtype
from thunder_core.workflow.models.sentences.transformer import config_class_of
from thunder_core.workflow.models.sentences.transformer import empty_model as empty_sentence_model

LIBRARY_PREFIX = "transformers."
SENTENCE_MODEL_PATH = f"{SentenceModel.__module__}:{SentenceModel.__qualname__}"


# The key in a config's text for attributes that `from_dict` adds, drops or changes. They are restored if they are None,
# booleans, numbers or strings, because a program that copies the config has guards on all attributes.
DIFFERENCES = "thunder_differences"
JSON_SCALAR_TYPES = (type(None), bool, int, float, str)


def is_rebuildable(model: object) -> bool:
    """Whether a model can be built from its config: a transformers model, or a sentence model around one.

    Returns False for models with adapters, and for quantized models whose format's library must load them: of the
    formats of packed weights, only BitNet is built from the config.
    """
    if isinstance(model, SentenceModel):
        return is_rebuildable(model.transformer)
    is_library = isinstance(model, PreTrainedModel) and type(model).__module__.startswith(LIBRARY_PREFIX)
    return is_library and is_built_by_config(cast(PreTrainedModel, model)) and not has_adapter(model)


def has_adapter(model: object) -> bool:
    """Whether a model has layers of PEFT, which its config does not describe."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(type(module).__module__.partition(".")[0] == "peft" for module in modules)


def empty_model_facts(model: PreTrainedModel) -> dict[str, Any]:
    """Return the class, dtype, attention implementation and mode of a model, as plain data."""
    return {
        "path": f"{type(model).__module__}:{type(model).__qualname__}",
        "dtype": dtype_name(model.dtype),
        "attention": model.config._attn_implementation or "",
        "training": model.training,
    }


def config_text(config: PretrainedConfig) -> str:
    """Return a config as JSON, with the scalar attributes that `from_dict` would not restore."""
    text: str = config.to_json_string(use_diff=False)
    content = json.loads(text)
    restored, own = vars(type(config).from_dict(json.loads(text))), vars(config)
    absent = [name for name in restored if name not in own]
    values = {
        name: value
        for name, value in own.items()
        if type(value) in JSON_SCALAR_TYPES and restored.get(name, own) != value
    }
    if not absent and not values:
        return text
    return json.dumps({**content, DIFFERENCES: {"absent": absent, "values": values}}, indent=2, sort_keys=True) + "\n"


def config_of(kind: Any, content: dict[str, Any]) -> PretrainedConfig:
    """Return the config that `config_text` wrote. `kind` is the class of the model.

    `content` is the parsed text, from which the entry `DIFFERENCES` is removed.
    """
    differences = content.pop(DIFFERENCES, {})
    config_class = config_class_of(content) if issubclass(kind, SentenceModel) else kind.config_class
    config: PretrainedConfig = config_class.from_dict(content)
    for name in differences.get("absent", ()):
        vars(config).pop(name, None)
    vars(config).update(differences.get("values", {}))
    return config


def generation_text(model: PreTrainedModel) -> str:
    """Return the generation settings of a model as JSON; empty for a model that does not generate."""
    generation = getattr(model, "generation_config", None)
    return generation.to_json_string(use_diff=False) if isinstance(generation, GenerationConfig) else ""


def build_empty_model(
    path: str,
    *,
    config: str,
    file: Path,
    generation: str,
    dtype: str,
    attention: str,
    training: bool,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Build a model on the CPU without initializing its weights.

    `path` is the import path of the model class. `config` is the text of the config, and `file` is its path for
    messages. `generation` is the text of the generation settings, and `attention` names the attention implementation;
    both may be empty. The constructor of the class runs, so attributes other than parameters and buffers have their
    normal values.

    Raises `RemoteCodeRefused` for a model that would fetch code from the Hub, unless `trust_remote_code` is set. Raises
    `OutOfMemory` if the layers do not fit into memory, and the errors of `loading_errors` for a class that cannot be
    built.
    """
    kind: Any = model_class_at(path)
    with (
        loading_errors(f"the model {kind.__name__}", "cannot be built from the artifact's config"),
        quiet_transformers(),
    ):
        content = json.loads(config)
        if not trust_remote_code:
            refuse_code_of_the_hub({**content, "attn_implementation": attention})
        require_depth(file, content)
        model_config = config_of(kind, content)
        model_config._attn_implementation = attention or None
        with no_init_weights(), default_dtype(parse_dtype(dtype)):
            model = cast(
                PreTrainedModel, empty_sentence_model(model_config) if kind is SentenceModel else kind(model_config)
            )
            place_packed_layers(model)
        model.tie_weights()
        follow_config(model)
        if generation:
            model.generation_config = GenerationConfig.from_dict(json.loads(generation))
    torch.nn.Module.train(model, training)
    return model


def refuse_code_of_the_hub(config: dict[str, Any]) -> None:
    """Raise `RemoteCodeRefused` for a config that names code on the Hub."""
    if (named := code_of_the_hub(config)) is not None:
        raise RemoteCodeRefused(
            f"the model of the artifact asks to download and run code from the Hub, {named!r}",
            fix="read the code; if you trust it, load with trust_remote_code=True or --trust-remote-code",
        )


def model_class_at(path: str) -> type:
    """Return a model class of transformers, or `SentenceModel`.

    Raises ImportError or AttributeError if the path does not exist, and TypeError if it is no such class.
    """
    if path == SENTENCE_MODEL_PATH:
        return SentenceModel
    if not path.startswith(LIBRARY_PREFIX):
        raise TypeError(f"{path} is not part of the transformers library")
    kind = plugins.import_object(path)
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise TypeError(f"{path} is not a model class")
    return kind
