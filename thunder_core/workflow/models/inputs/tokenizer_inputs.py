"""The optional inputs, such as `token_type_ids`, that a tokenizer returns in addition to tokens and mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.workflow.models.folder.origin import FolderOrigin, find_origin, request_of
from thunder_core.workflow.models.inputs.input_names import IDS
from thunder_core.workflow.models.inputs.tokens import has_tokenizer, tokenizer_of
from thunder_core.workflow.models.loading.loaded_model import LoadedModel

SAMPLE_TEXT = "a"


def token_types(loaded: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    """Return token types for pairs of texts: 0 for the first half of each sample, and 1 for the second half.

    They are all 0 if the model has only one token type.
    """
    type_count = getattr(loaded.config, "type_vocab_size", None)
    types = torch.zeros_like(ids)
    if type_count is None or type_count > 1:
        types[..., ids.shape[-1] // 2 :] = 1
    return types


# The function that builds each optional input, by the name of the parameter of `forward`.
BUILDERS: Mapping[str, Callable[[LoadedModel, torch.Tensor], torch.Tensor]] = {"token_type_ids": token_types}


def tokenizer_inputs(loaded: LoadedModel, inputs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    """Return the inputs, and the missing optional inputs among `names`, the names of the tokenizer's outputs.

    They are in the order of `names`. None if nothing is added.
    """
    ids = inputs.get(IDS)
    if not isinstance(ids, torch.Tensor):
        return None
    added = {name: BUILDERS[name](loaded, ids) for name in names if name in BUILDERS and name not in inputs}
    both = {**inputs, **added}
    return {name: both[name] for name in dict.fromkeys((*names, *both)) if name in both} if added else None


def returned_names(loaded: LoadedModel) -> tuple[str, ...]:
    """Return the names of the tokenizer's outputs that the model accepts, in the tokenizer's order.

    The tokenizer in the model's folder is loaded only if the model accepts an optional input. Otherwise, or without a
    tokenizer, there are no names.
    """
    parameters = inspect.signature(type(loaded.model).forward).parameters
    if BUILDERS.keys().isdisjoint(parameters):
        return ()
    try:
        origin = find_origin(request_of(loaded.source))
        if not isinstance(origin, FolderOrigin) or not has_tokenizer(origin.folder):
            return ()
        returned = tokenizer_of(origin.folder, trust_remote_code=False)(SAMPLE_TEXT)
    except ThunderError:  # the model can be optimized without its tokenizer
        return ()
    return tuple(name for name in returned if name in parameters)


def optional_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a tokenizer's outputs that callers may leave out."""
    return tuple(name for name in names if name in BUILDERS)
