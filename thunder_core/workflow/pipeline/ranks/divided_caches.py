"""Join the KV caches of several ranks. Each rank has some of the attention heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from thunder_core.foundation.model_configs import config_or_none
from thunder_core.workflow.models.inputs.input_tensors import map_tensors

HEAD_NUMBERS = ("num_key_value_heads", "num_attention_heads")  # the first attribute that a config has is used
DIMENSION = 1  # the dimension of the heads in keys and values


def heads_of(model: torch.nn.Module) -> int | None:
    """Return the number of heads in the KV cache of the undivided model; None if unknown."""
    config = config_or_none(model)
    numbers = (getattr(config, name, None) for name in HEAD_NUMBERS)
    return next((number for number in numbers if isinstance(number, int)), None)


def join_heads(values: Sequence[Any], heads: int | None) -> Any:
    """Return the value of the first rank, or the joined KV cache if the ranks together have all `heads`."""
    first = values[0]
    if not isinstance(first, Cache) or len(values) == 1:
        return first
    joined = iter([_join(tensors, heads) for tensors in zip(*map(_tensors_of, values), strict=True)])
    return map_tensors(first, lambda _: next(joined))


def _tensors_of(cache: Cache) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(cache, note)
    return tensors


def _join(tensors: Sequence[torch.Tensor], heads: int | None) -> torch.Tensor:
    has_heads = tensors[0].ndim == 4
    if has_heads and sum(tensor.shape[DIMENSION] for tensor in tensors) == heads:
        return torch.cat(list(tensors), DIMENSION)
    return tensors[0]
