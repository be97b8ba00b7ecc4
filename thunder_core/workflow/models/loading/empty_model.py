"""A model of the transformers library from its class and config alone: built once, without drawing any weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import RemoteCodeRefused
from thunder_core.workflow.models.folder.folder import code_of_the_hub
from thunder_core.workflow.models.loading.depth import require_depth
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.loading.outputs import follow_config
from thunder_core.workflow.models.loading.packed_weights import is_built_by_config, place_packed_layers
from thunder_core.workflow.models.request.dtype import dtype_name, parse_dtype

LIBRARY = "transformers."


# The key of a config's text that says how a config read from it differs from the one that was written: the attributes
# that only the read one has, and those with another value. Programs that copy a config are guarded by all of them.
DIFFERENCES = "thunder_differences"
PLAIN = (type(None), bool, int, float, str)


def is_rebuildable(model: object) -> bool:
    """Whether a model's class is one of the library's own, which is there wherever the library is.

    Its layers are those of its config; weights that are packed by the library of a format have to be loaded by that.
    """
    is_library = isinstance(model, PreTrainedModel) and type(model).__module__.startswith(LIBRARY)
    return is_library and is_built_by_config(cast(PreTrainedModel, model))


def empty_model_facts(model: PreTrainedModel) -> dict[str, Any]:
    """The class, dtype, attention and mode of a model, as plain data."""
    return {
        "path": f"{type(model).__module__}:{type(model).__qualname__}",
        "dtype": dtype_name(model.dtype),
        "attention": model.config._attn_implementation or "",
        "training": model.training,
    }


def config_text(config: PretrainedConfig) -> str:
    """A config as its file holds it, with everything that it says."""
    text: str = config.to_json_string(use_diff=False)
    content = json.loads(text)
    again, own = vars(type(config).from_dict(json.loads(text))), vars(config)
    absent = [name for name in again if name not in own]
    values = {name: value for name, value in own.items() if type(value) in PLAIN and again.get(name, own) != value}
    if not absent and not values:
        return text
    return json.dumps({**content, DIFFERENCES: {"absent": absent, "values": values}}, indent=2, sort_keys=True) + "\n"


def config_of(kind: Any, content: dict[str, Any]) -> PretrainedConfig:
    """The config of a class that a text holds, with the attributes that the config had of which the text was made."""
    differences = content.pop(DIFFERENCES, {})
    config: PretrainedConfig = kind.config_class.from_dict(content)
    for name in differences.get("absent", ()):
        vars(config).pop(name, None)
    vars(config).update(differences.get("values", {}))
    return config


def generation_text(model: PreTrainedModel) -> str:
    """The generation settings of a model, as their file holds them; empty for a model that does not generate."""
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
    """The model on the CPU; its parameters hold whatever lay in memory until they are given values.

    `config` is the content of `file`. The constructor runs, so that attributes which are neither parameters nor buffers
    are what they should be. Raises `RemoteCodeRefused` for one that would fetch code from the hub, unless that is
    trusted, and `OutOfMemory` for more layers than fit into memory.
    """
    kind: Any = library_class(path)
    with (
        loading_errors(f"the model {kind.__name__}", "cannot be built from the artifact's config"),
        quiet_transformers(),
    ):
        content = json.loads(config)
        if not trust_remote_code:
            refuse_code_of_the_hub({**content, "attn_implementation": attention})
        require_depth(file, content)
        made = config_of(kind, content)
        made._attn_implementation = attention or None
        with no_init_weights(), default_dtype(parse_dtype(dtype)):
            model: PreTrainedModel = kind(made)
            place_packed_layers(model)
        model.tie_weights()
        follow_config(model)
        if generation:
            model.generation_config = GenerationConfig.from_dict(json.loads(generation))
    torch.nn.Module.train(model, training)
    return model


def refuse_code_of_the_hub(config: dict[str, Any]) -> None:
    """Raise `RemoteCodeRefused` for a config that names code of the hub."""
    if (named := code_of_the_hub(config)) is not None:
        raise RemoteCodeRefused(
            f"the model of the artifact asks to download and run code from the Hub, {named!r}",
            fix="read the code; if you trust it, load with trust_remote_code=True or --trust-remote-code",
        )


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors of this dtype where none is named."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def library_class(path: str) -> type:
    """A class of the transformers library; raises ImportError, AttributeError, and TypeError for any other object."""
    if not path.startswith(LIBRARY):
        raise TypeError(f"{path} is not part of the transformers library")
    kind = plugins.imported(path)
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise TypeError(f"{path} is not a model")
    return kind
