"""Create KV caches with random keys and values, as inputs of a decoder model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DynamicCache

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.transformers_versions import returned_cache
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs
from thunder_core.workflow.models.loading.loaded_model import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Shapes = list[tuple[torch.Size, torch.Size]]
_SHAPES_BY_MODEL: WeakKeyDictionary[PreTrainedModel, Shapes] = WeakKeyDictionary()
FIX_WITHOUT_CACHE = "leave out --cache and --dynamic cache=: this model has no KV cache"


def random_cache(loaded: LoadedModel, draw: RandomInputs, length: int) -> DynamicCache:
    """Return the model's `DynamicCache` after `length` tokens, with random keys and values.

    A layer with a sliding window has only the tokens of its window. Raises `BadOption` for a model that does not accept
    a dynamic cache with keys and values for each token, even if `length` is 0.
    """
    cache = DynamicCache(config=loaded.model.config.get_text_config(decoder=True))
    layers = key_value_shapes(loaded.model)
    for index, shapes in enumerate(layers if length else ()):
        keys, values = (
            draw.normal(draw.batch, heads, length, width).to(loaded.model.device, loaded.model.dtype)
            for _, heads, _, width in shapes
        )
        # As in generation, the last token is added separately, because the memory layout depends on the last addition.
        for part in (slice(0, length - 1), slice(length - 1, length)):
            cache.update(keys[:, :, part], values[:, :, part], index)
    return cache


def key_value_shapes(model: PreTrainedModel) -> Shapes:
    """Return the shapes of the keys and values of one token, for each layer.

    The model is called once, and the shapes are stored. Raises `BadOption` if the model has no KV cache.
    """
    if model not in _SHAPES_BY_MODEL:
        _SHAPES_BY_MODEL[model] = _compute_shapes(model)
    return _SHAPES_BY_MODEL[model]


def _compute_shapes(model: PreTrainedModel) -> Shapes:
    cache = cache_after_one_token(model)
    layers: list[Any] = cache.layers if type(cache) is DynamicCache else []
    if not layers or not all(map(_has_keys_and_values, layers)):
        raise BadOption(f"{type(model).__name__} takes no KV cache", fix=FIX_WITHOUT_CACHE)
    return [(layer.keys.shape, layer.values.shape) for layer in layers]


def cache_after_one_token(model: PreTrainedModel) -> Any:
    """Return the cache that a call with one token returns, or None if the model returns no cache."""
    if model.config.is_encoder_decoder or not model.can_generate():
        return None
    ids = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    with torch.no_grad():
        return returned_cache(model(input_ids=ids, use_cache=True))


def _has_keys_and_values(layer: Any) -> bool:
    """Whether the only tensors of a cache layer are four-dimensional keys and values."""
    # A layer with a sliding window also has a tensor with the size of the window.
    tensors = {name for name, value in vars(layer).items() if isinstance(value, torch.Tensor)}
    return tensors - {"_sliding_window_tensor"} == {"keys", "values"} and layer.keys.dim() == layer.values.dim() == 4
