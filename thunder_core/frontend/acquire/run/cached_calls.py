"""Calls of functions that `functools.lru_cache` decorates: guards on cached values, and values new to a cache."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.frontend.acquire.outside.call_traits import is_fixed
from thunder_core.frontend.acquire.outside.guards.identities import SameAs
from thunder_core.frontend.acquire.outside.paths import Path, computed_path
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.ir.retrace import FillsCache
from thunder_core.tracing.library.objects import cached_value

SIDE_EFFECT_FREE_PACKAGES = ("torch", "thunder_core")  # their cached functions have no effects that a program sees
NO_OPERAND = object()
HASHED_BY_IDENTITY = (object.__hash__, torch.Tensor.__hash__)


class CachedCalls:
    """The calls of cached functions in one run.

    If the cache has the value, the program uses this value. A new value enters the cache while tracing, if it is a
    constant and its computation has no side effects. Otherwise, eager PyTorch makes this call of the whole program, so
    that the next call finds the value in the cache.

    In three cases, the trace computes the value at each call instead: if `fills` is not set, if an argument is an
    object that the program creates (no later call can find the value), or if the cache overflows. After a run has
    computed a value of an overflowing cache, it also computes the values that happen to be in this cache.
    """

    def __init__(self, run: TracedRun, *, fills: bool) -> None:
        self._run = run
        self._fills = fills
        self.has_new_values = False  # whether a cached function has computed a tensor or a new object
        # By `id` of a cached function, the effect counts before its calls.
        self._counts_before_calls: dict[int, list[tuple[int, ...]]] = {}
        self._called: set[int] = set()  # the `id` of each cached function that the run has called
        # The `id` of each cached function whose `cache_info` the run has called.
        self._read_statistics: set[int] = set()
        self._overflowing: set[int] = set()  # the `id` of each cached function with a value that the run computed
        self._paths: dict[tuple[Any, ...], Path] = {}  # the paths to cached values, by function and arguments

    def note_miss(self, cached: object) -> None:
        """Note that a cached function is about to compute a value that its cache lacks."""
        self._counts_before_calls.setdefault(id(cached), []).append(self.effect_counts())

    def guard_result(
        self, cached: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], value: Any, *, hit: bool
    ) -> bool:
        """Guard the value that a cached function has returned. Return whether the value stays in the cache.

        Raises `Retrace` if eager PyTorch makes this call of the program.
        """
        if hit:
            if not self._guard_in_prologue(cached, arguments, keywords, value):
                self._run.outside.guard_cached_value(cached)
                self._register_object(cached, value)
            return True
        has_effects = self._counts_before_calls[id(cached)].pop() != self.effect_counts()
        is_kept = is_fixed(value) and not has_effects
        has_new_key = any(map(self._is_new_key, (*arguments, *keywords.values())))
        overflows = is_overflowing(cached) and not has_effects and not is_kept
        is_computed_again = has_new_key or overflows
        if overflows:
            self._overflowing.add(id(cached))
        if not is_kept and self._is_filled_by_eager(cached) and not is_computed_again:
            raise self._run.retrace(FillsCache())
        if not is_kept and is_users_code(getattr(cached.__wrapped__, "__code__", None)):
            self._run.note_edge(f"{cached.__qualname__} under functools.lru_cache makes a new object at each call")
        is_read = is_kept and is_constant(value) and self._guard_in_prologue(cached, arguments, keywords, value)
        if not is_read and (is_kept or not is_computed_again):  # otherwise, no value in the cache matters
            self._run.outside.guard_cached_value(cached)
        self.has_new_values |= not is_kept
        return is_kept

    def note_call(self, cached: object) -> None:
        """Note that the program calls a cached function, which changes the statistics of the cache."""
        self._called.add(id(cached))
        self._require_known_statistics(cached)

    def note_read_of_statistics(self, cached: object) -> None:
        """Note that the program calls `cache_info` of a cached function."""
        self._read_statistics.add(id(cached))
        self._require_known_statistics(cached)

    def _require_known_statistics(self, cached: Any) -> None:
        """Leave the program to eager PyTorch if it calls a cached function and reads the statistics of its cache.

        Tracing and the prologue call the cached function, too, so that the statistics differ from eager PyTorch.
        """
        if id(cached) in self._read_statistics and id(cached) in self._called:
            self._run.leave_to_eager(
                f"the program calls `{cached.__qualname__}` and reads `{cached.__qualname__}.cache_info()`",
                "read the statistics of the cache outside the compiled program",
            )

    def computes(self, cached: Any) -> bool:
        """Whether the trace computes all values of a cached function, because its cache overflows."""
        return id(cached) in self._overflowing

    def _guard_in_prologue(self, cached: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], value: Any) -> bool:
        """Make the prologue call the cached function again, and guard the result.

        Return False if the prologue has no path to an argument of the function. The number of misses is then guarded
        instead. It changes with each new value in the cache, and it may be equal after the cache was cleared.
        """
        operands = tuple(map(self._operand, self._run.numbers.values((cached, *arguments, *keywords.values()))))
        if any(operand is NO_OPERAND for operand in operands):
            return False
        key = tuple((type(operand), operand) for operand in (*keywords, *operands))
        if key not in self._paths:
            self._paths[key] = computed_path(cached_value, (operands[0], tuple(keywords), *operands[1:]), value)
        known_path = self._run.outside.path_of(value)
        if known_path is not None and known_path.step == "cached":  # an earlier call had an argument without a path
            self._run.outside.guard(SameAs(self._paths[key], known_path))
        else:
            self._run.outside.read(self._paths[key], value)
        return True

    def _operand(self, argument: object) -> Any:
        """Return an argument as the prologue refers to it: a constant, or a path; otherwise `NO_OPERAND`."""
        path = self._run.outside.path_of(argument)
        return path if path is not None else argument if is_fixed(argument) else NO_OPERAND

    def _register_object(self, cached: Any, value: Any) -> None:
        """Register a cached object as a root of paths: later calls find the same object unless the cache changes.

        A cached tensor gets no path: it is a constant of the trace.
        """
        if not (is_fixed(value) or isinstance(value, torch.Tensor)) and self._run.outside.path_of(value) is None:
            self._run.outside.root("cached", f"value_of_{cached.__name__}", value)

    def effect_counts(self) -> tuple[int, ...]:
        """Return the numbers of effects, writes and prologue calls so far. A side effect increases one of them."""
        effects = self._run.outside.effects
        return len(effects.effects), effects.write_count, len(self._run.draws.paths)

    def _is_filled_by_eager(self, cached: Any) -> bool:
        """Whether eager PyTorch makes the call of the program to fill the cache of this function."""
        module = str(getattr(cached.__wrapped__, "__module__", "")).partition(".")[0]
        return self._fills and module not in SIDE_EFFECT_FREE_PACKAGES

    def _is_new_key(self, argument: object) -> bool:
        """Whether the program creates an argument that is compared by identity: then no later call has an equal key."""
        if type(argument) is tuple:
            return any(map(self._is_new_key, argument))
        if is_fixed(argument) or self._run.outside.path_of(argument) is not None:
            return False
        return type_lookup(type(argument), "__hash__") in HASHED_BY_IDENTITY


def is_overflowing(cached: Any) -> bool:
    """Whether a full cache has evicted more values than it contains, and has fewer hits than misses."""
    hits, misses, maxsize, size = cached.cache_info()
    return maxsize is not None and size == maxsize and misses > 2 * max(maxsize, 1) and hits < misses
