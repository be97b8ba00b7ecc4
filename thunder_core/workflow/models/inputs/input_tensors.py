"""The tensors of a call's inputs, including tensors inside caches of the transformers library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

Change = Callable[[torch.Tensor], torch.Tensor]


def tensors_in(inputs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of inputs by path, such as `input_ids` or `past_key_values.layers[0].keys`."""
    yield from ((path, leaf) for path, leaf in _leaves_of(inputs) if isinstance(leaf, torch.Tensor))


def numbers_in(inputs: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the integers of inputs and caches by path, such as `past_key_values.layers[0].cumulative_length`."""
    yield from ((path, leaf) for path, leaf in _leaves_of(inputs) if type(leaf) is int)


def _leaves_of(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in inputs.items():
        yield from _leaves(name, value)


def _leaves(path: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}[{index}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}[{key!r}]", item)
    elif isinstance(value, Cache | CacheLayerMixin):
        for name, item in vars(value).items():
            if not name.startswith("_"):  # private attributes are computed by the layer
                yield from _leaves(f"{path}.{name}", item)
    else:
        yield path, value


def map_tensors(value: object, change: Change) -> Any:
    """Apply a function to all tensors of an input; caches, lists and dicts are copied; other values are unchanged."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list):
        return [map_tensors(item, change) for item in value]
    if type(value) is dict:
        return {name: map_tensors(item, change) for name, item in value.items()}
    if isinstance(value, Cache | CacheLayerMixin):
        return _like(value, {name: map_tensors(item, change) for name, item in vars(value).items()})
    return value


def with_own_caches(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs with copies of the caches, which a call may write to; the copies share their tensors."""
    return {name: _copy_cache(value) if isinstance(value, Cache) else value for name, value in inputs.items()}


def _copy_cache(cache: Cache) -> Cache:
    """Return a copy of a cache with copied layers and the same tensors."""
    own: Cache = _like(cache, vars(cache))
    own.layers = [_like(layer, vars(layer)) for layer in cache.layers]
    return own


def _like(value: object, attributes: Mapping[str, Any]) -> Any:
    """Return an object of the same class with these attributes.

    The attributes `dtype` (before transformers 5.24) and `device` of a cache layer are taken from its keys.
    """
    copy = object.__new__(type(value))
    vars(copy).update(attributes)
    keys = attributes.get("keys")
    if isinstance(keys, torch.Tensor):
        vars(copy).update({name: getattr(keys, name) for name in ("dtype", "device") if name in attributes})
    return copy
