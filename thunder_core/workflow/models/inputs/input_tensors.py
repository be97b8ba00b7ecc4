"""The tensors of a call's inputs, where some are in the caches of the transformers library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

Change = Callable[[torch.Tensor], torch.Tensor]


def tensors_in(inputs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of inputs as one would write them: `input_ids`, `past_key_values.layers[0].keys`."""
    yield from ((path, leaf) for path, leaf in _leaves_of(inputs) if isinstance(leaf, torch.Tensor))


def numbers_in(inputs: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The integers that caches keep: `past_key_values.layers[0].cumulative_length`."""
    yield from ((path, leaf) for path, leaf in _leaves_of(inputs) if type(leaf) is int)


def _leaves_of(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in inputs.items():
        yield from _leaves(name, value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _leaves(f"{path}[{place}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}[{key!r}]", item)
    elif isinstance(value, Cache | CacheLayerMixin):
        for name, item in vars(value).items():
            if not name.startswith("_"):  # what a layer computes for itself
                yield from _leaves(f"{path}.{name}", item)
    else:
        yield path, value


def converted(value: Any, change: Change) -> Any:
    """An input whose tensors are what a function makes of them; caches and lists are others, all else is the same."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list):
        return [converted(item, change) for item in value]
    if isinstance(value, Cache | CacheLayerMixin):
        return _like(value, {name: converted(item, change) for name, item in vars(value).items()})
    return value


def with_own_caches(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of one call, which writes to the caches that it is given; the tensors in them stay as they are."""
    return {name: _own(value) if isinstance(value, Cache) else value for name, value in inputs.items()}


def _own(cache: Cache) -> Cache:
    """A cache of the same tensors, with layers of its own."""
    own: Cache = _like(cache, vars(cache))
    own.layers = [_like(layer, vars(layer)) for layer in cache.layers]
    return own


def _like(value: Any, attributes: Mapping[str, Any]) -> Any:
    """An object of the same class with these attributes; the dtype and the device that it names are those of its keys.

    Layers name their dtype before transformers 5.24.
    """
    made = object.__new__(type(value))
    vars(made).update(attributes)
    keys = attributes.get("keys")
    if isinstance(keys, torch.Tensor):
        vars(made).update({name: getattr(keys, name) for name in ("dtype", "device") if name in attributes})
    return made
