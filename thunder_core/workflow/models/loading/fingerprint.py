"""Fingerprints of models: hashes of the structure alone, or of the structure and the weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from blake3 import blake3

from thunder_core.foundation.model_configs import config_or_none
from thunder_core.foundation.storage.digest import digest_for

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Attributes of a config that change when the model is used, and do not describe the model. A forward with labels sets
# `problem_type`, and trainers set `use_cache`; a program that reads `use_cache` has a guard on it.
USAGE_ATTRIBUTES = frozenset(
    {
        "_name_or_path",
        "name_or_path",
        "_commit_hash",
        "transformers_version",
        "architectures",
        "problem_type",
        "use_cache",
    }
)


def structure_fingerprint(model: torch.nn.Module) -> str:
    """Return a hash of a model's config and of the names, shapes, dtypes, ties and classes of its parts."""
    return blake3(json.dumps(structure(model), sort_keys=True, default=str).encode()).hexdigest()


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return a hash of the structure and the values of all parameters and buffers; it does not depend on the device."""
    digest = digest_for(sum(tensor.nbytes for _, tensor in weights_of(model)))
    digest.update(structure_fingerprint(model).encode())
    hashed: set[int] = set()
    for _, tensor in weights_of(model):
        if id(tensor) not in hashed:
            hashed.add(id(tensor))
            digest.update(_bytes(tensor))
    return digest.hexdigest()


def structure(model: torch.nn.Module) -> dict[str, object]:
    """Return a model's structure as plain data: the input of the hash."""
    config = config_or_none(model)
    first_name: dict[int, str] = {}
    return {
        "config": canonical_config(config) if is_config(config) else None,
        "classes": [[name, type(module).__qualname__] for name, module in model.named_modules()],
        "tensors": [
            [name, list(tensor.shape), str(tensor.dtype), first_name.setdefault(id(tensor), name)]
            for name, tensor in weights_of(model)
        ],
    }


def is_config(config: object) -> TypeGuard[PretrainedConfig]:
    """Whether an object is a config of the transformers library; this does not import the library."""
    library = sys.modules.get("transformers.configuration_utils")
    return library is not None and isinstance(config, library.PretrainedConfig)


def canonical_config(config: PretrainedConfig) -> dict[str, object]:
    """Return a config as plain data, without `USAGE_ATTRIBUTES` and with the attention implementation."""
    content = json.loads(config.to_json_string(use_diff=False))
    lasting_content = {key: value for key, value in content.items() if key not in USAGE_ATTRIBUTES}
    return {**lasting_content, "attn_implementation": getattr(config, "_attn_implementation", None)}


def weights_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter and buffer under every name, including buffers that are not in the state dict."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)
