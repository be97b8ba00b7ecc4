"""Restore the state that a model keeps between calls, after a call on tensors without data."""

from __future__ import annotations

import functools
import gc
from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterator
from contextlib import contextmanager

import torch

CONTAINERS = (dict, list, set, OrderedDict, defaultdict, deque)  # OrderedDict contains the hooks of a module


@contextmanager
def restore_model_state(model: torch.nn.Module) -> Iterator[None]:
    """Restore the attributes of all modules after the block, and clear the caches of their code.

    Otherwise, later calls would read the block's tensors from attributes and caches. The cleared caches are the
    functions with `lru_cache` in the Python modules that define the models' classes. Lists, dicts and sets in
    attributes are restored; the contents of other objects are not.
    """
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    containers = [(value, value.copy()) for _, own in attributes for value in own.values() if type(value) in CONTAINERS]
    sources = {type(module).__module__ for module in model.modules()}
    misses = {id(cached): cached.cache_info().misses for cached in _caches(sources)}
    try:
        yield
    finally:
        for now, before in (*attributes, *containers):
            now.clear()
            now.extend(before) if isinstance(now, list | deque) else now.update(before)
        for cached in _caches(sources):
            if cached.cache_info().misses != misses.get(id(cached), 0):
                cached.cache_clear()


def _caches(sources: Container[str]) -> list[functools._lru_cache_wrapper[object]]:
    """Return the functions with `functools.lru_cache` of these Python modules, except those hidden by `gc.freeze`."""
    cached_functions = (value for value in gc.get_objects() if type(value) is functools._lru_cache_wrapper)
    return [cached for cached in cached_functions if getattr(cached, "__module__", None) in sources]
