"""Calls of functions under `functools.lru_cache`: eager PyTorch computes each value, with its side effects, once."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.frontend.acquire.outside.call_traits import is_fixed
from thunder_core.frontend.acquire.outside.guards import SameAs
from thunder_core.frontend.acquire.outside.paths import Path, computed_path
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.ir.retrace import FillsCache
from thunder_core.tracing.library.objects import cached_value

PYTORCHS = ("torch", "thunder_core")  # packages whose cached functions have no effects that a program sees
NO_OPERAND = object()
HASHED_BY_IDENTITY = (object.__hash__, torch.Tensor.__hash__)


class CachedCalls:
    """The calls of cached functions in one run.

    A cached value is used as it is. A new value enters the cache while tracing, if it is a constant and its computation
    has no side effects. Otherwise, eager PyTorch makes this call of the whole program, so that the next call finds the
    value in the cache.

    In three cases, the trace computes the value at each call instead: if `fills` is not set, if an argument is an
    object that the program creates (no later call can find the value), or if the cache overflows.
    """

    def __init__(self, run: TracedRun, *, fills: bool) -> None:
        self._run = run
        self._fills = fills
        self._counts: dict[int, list[tuple[int, ...]]] = {}  # by cached function, the numbers of effects before calls
        self._paths: dict[tuple[Any, ...], Path] = {}  # the paths to values of caches, by function and arguments

    def begin(self, cached: object) -> None:
        """Note that a cached function is about to compute a value that its cache lacks."""
        self._counts.setdefault(id(cached), []).append(self._count())

    def end(self, cached: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], value: Any, *, hit: bool) -> bool:
        """Note the value that a cached function has returned, and guard it. Return whether it stays in the cache."""
        if hit:
            self._run.outside.guard_cached_value(cached)
            if not self._read_again(cached, arguments, keywords, value):
                self._note_object(cached, value)
            return True
        has_effects = self._counts[id(cached)].pop() != self._count()
        is_kept = is_fixed(value) and not has_effects
        is_computed_again = any(map(self._is_new, (*arguments, *keywords.values()))) or (
            overflows(cached) and not has_effects
        )
        if not is_kept and self._is_filled(cached) and not is_computed_again:
            raise self._run.retrace(FillsCache())
        self._run.outside.guard_cached_value(cached)
        if not is_kept and is_users_code(getattr(cached.__wrapped__, "__code__", None)):
            self._run.note_edge(f"{cached.__qualname__} under functools.lru_cache makes a new object at each call")
        if is_kept and is_constant(value):
            self._read_again(cached, arguments, keywords, value)
        return is_kept

    def _read_again(self, cached: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], value: Any) -> bool:
        """Make the prologue read a value of a cache, which may have been cleared and filled with as many other values.

        Return False if the prologue cannot call the function, because it has no path to an argument.
        """
        operands = tuple(map(self._operand, self._run.numbers.values((cached, *arguments, *keywords.values()))))
        if any(operand is NO_OPERAND for operand in operands):
            return False
        key = tuple((type(operand), operand) for operand in (*keywords, *operands))
        if key not in self._paths:
            self._paths[key] = computed_path(cached_value, (operands[0], tuple(keywords), *operands[1:]), value)
        known_path = self._run.outside.path_of(value)
        if known_path is not None and known_path.step == "cached":  # found with a key that has no path
            self._run.outside.guard(SameAs(self._paths[key], known_path))
        else:
            self._run.outside.read(self._paths[key], value)
        return True

    def _operand(self, argument: object) -> Any:
        """Return an argument as the prologue refers to it: a constant, or a path; otherwise `NO_OPERAND`."""
        path = self._run.outside.path_of(argument)
        return path if path is not None else argument if is_fixed(argument) else NO_OPERAND

    def _note_object(self, cached: Any, value: Any) -> None:
        """Note that a value of the cache is an object from outside, which later calls find unless the cache changes.

        A tensor is a constant of the trace.
        """
        if not (is_fixed(value) or isinstance(value, torch.Tensor)) and self._run.outside.path_of(value) is None:
            self._run.outside.root("cached", f"value_of_{cached.__name__}", value)

    def _count(self) -> tuple[int, ...]:
        """Return the numbers of effects, writes and prologue calls so far, which differ after a side effect."""
        effects = self._run.outside.effects
        return len(effects.effects), effects.write_count, len(self._run.draws.paths)

    def _is_filled(self, cached: Any) -> bool:
        """Whether eager PyTorch makes the call in order to fill the cache of this function."""
        module = str(getattr(cached.__wrapped__, "__module__", "")).partition(".")[0]
        return self._fills and module not in PYTORCHS

    def _is_new(self, argument: object) -> bool:
        """Whether a cache cannot find an argument again: the program makes it, and it is compared by identity."""
        if type(argument) is tuple:
            return any(map(self._is_new, argument))
        if is_fixed(argument) or self._run.outside.path_of(argument) is not None:
            return False
        return type_lookup(type(argument), "__hash__") in HASHED_BY_IDENTITY


def overflows(cached: Any) -> bool:
    """Whether a full cache has dropped more values than it holds, and found fewer than half of the requested values."""
    hits, misses, maxsize, size = cached.cache_info()
    return maxsize is not None and size == maxsize and misses > 2 * max(maxsize, 1) and hits < misses
