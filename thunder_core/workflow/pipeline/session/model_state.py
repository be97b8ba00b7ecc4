"""The state that a model keeps from one call to the next, restored after a call on tensors without data."""

from __future__ import annotations

import functools
import gc
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CONTAINERS = (dict, list, set, OrderedDict, defaultdict, deque)  # of which OrderedDict holds the hooks of a module


@contextmanager
def caches_kept(model: torch.nn.Module) -> Iterator[None]:
    """Restore the attributes of all modules when the block ends, and clear each `lru_cache` that was filled in it.

    Otherwise, later calls would find the tensors of the block there. Clearing a cache makes the next call slower, and
    changes nothing else.
    """
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    containers = [(value, value.copy()) for _, own in attributes for value in own.values() if type(value) in CONTAINERS]
    misses = {id(cached): cached.cache_info().misses for cached in _caches()}
    try:
        yield
    finally:
        for now, before in (*attributes, *containers):
            now.clear()
            now.extend(before) if isinstance(now, list | deque) else now.update(before)
        for cached in _caches():
            if cached.cache_info().misses != misses.get(id(cached), 0):
                cached.cache_clear()


def _caches() -> list[functools._lru_cache_wrapper[object]]:
    """Every function under `functools.lru_cache` that the garbage collector knows, which `gc.freeze` hides."""
    return [found for found in gc.get_objects() if type(found) is functools._lru_cache_wrapper]
