"""Calls of functions under `functools.lru_cache` with symbolic numbers, whose results each call computes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Set
from itertools import count
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from thunder_core.frontend.acquire.numbers import is_outside
from thunder_core.frontend.acquire.outside.call_traits import is_fixed
from thunder_core.frontend.acquire.outside.paths import computed_path
from thunder_core.frontend.acquire.run.cached_calls import CachedCalls
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.ir.retrace import NeedsPlainKeys
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.changes.cached_results import SIZE, has_cached, leaves_of, structure_of

CACHED = functools._lru_cache_wrapper
CONTAINERS = (tuple, list, dict)


class SymbolicKeys:
    """The calls of cached functions with symbolic numbers in one run.

    The cache has a value for each value of the numbers. A program for all numbers cannot use such a value, so it
    computes the result. This is right for a function that has no side effects and returns only numbers, constants, and
    containers of these. The prologue also calls the function, as in eager PyTorch, and guards that the result equals
    the computed one. The cache keeps each list or dict of a result, so the program must not change or return these.
    Functions with code in `plain_keys` get constants instead: an earlier trace has found that they break these rules.
    """

    def __init__(self, run: TracedRun, calls: CachedCalls, plain_keys: Set[CodeType]) -> None:
        self._run = run
        self._calls = calls
        self._plain_keys = plain_keys
        # Each list or dict of a result, with its contents and the code of the function.
        self._containers: list[tuple[object, list[object], CodeType]] = []
        self._guarded: set[tuple[object, ...]] = set()  # the calls that the prologue makes

    def compute(self, called: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return the result of a cached function, or of a bound method, for symbolic numbers.

        Returns `NOT_TAKEN` for other functions and arguments. Raises `Retrace` if the function must be called with
        constants.
        """
        cached = called
        if type(called) is MethodType:
            cached, arguments = called.__func__, (called.__self__, *arguments)
        function = cached.__wrapped__ if type(cached) is CACHED else None
        if type(function) is not FunctionType or function.__code__ in self._plain_keys:
            return NOT_TAKEN
        keys = [*leaves_of_keys((*arguments, *keywords.values()))]
        if not any(map(is_outside, keys)) or not all(map(self._is_key, keys)):
            return NOT_TAKEN
        self._calls.note_call(cached)
        before = self._counts()
        value = self._run.machine.invoke(function, arguments, keywords)
        if self._counts() != before or not is_cached(cached, arguments, keywords, value):
            raise self._run.retrace(NeedsPlainKeys(function.__code__))
        self._guard_in_prologue(cached, arguments, keywords, value)
        parts = (part for part in containers_in(value) if type(part) is not tuple)
        self._containers += ((part, contents_of(part), function.__code__) for part in parts)
        return value

    def require_unchanged(self, output: object) -> None:
        """Raise `Retrace` if the program changes or returns a container that the cache keeps."""
        returned = {id(part) for part in containers_in(output)} if self._containers else set()
        for container, contents, code in self._containers:
            now = contents_of(container)
            is_equal = len(now) == len(contents) and all(map(operator.is_, now, contents))
            if id(container) in returned or not is_equal:
                raise self._run.retrace(NeedsPlainKeys(code))

    def _is_key(self, operand: Any) -> bool:
        """Whether an argument is a number from outside, a constant, or an object that is compared by identity."""
        if is_outside(operand):
            return not operand.drawn
        is_object = self._run.outside.path_of(operand) is not None
        return is_fixed(operand) or (is_object and type_lookup(type(operand), "__hash__") is object.__hash__)

    def _counts(self) -> tuple[object, ...]:
        """Return the numbers of effects and of recorded operations, which a call without side effects keeps."""
        return (*self._calls.effect_counts(), len(self._run.recorder.bound_symbols))

    def _guard_in_prologue(
        self, cached: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], value: object
    ) -> None:
        """Make the prologue call the cached function, and guard that it returns the computed result."""
        keys, numbers = (*arguments, *keywords.values()), count()
        templates = tuple(template_of(key, numbers) for key in keys)
        leaves = (*leaves_of_keys(keys), *leaves_of(value))
        facts = (tuple(keywords), templates, structure_of(value))
        call = (id(cached), *facts, *((type(leaf), identity_of(leaf)) for leaf in leaves))
        if call not in self._guarded:
            self._guarded.add(call)
            operands = (self._operand(cached), *facts, *map(self._operand, leaves))
            self._run.outside.read(computed_path(has_cached, operands, value=True), True)

    def _operand(self, leaf: Any) -> Any:
        """Return a leaf as the prologue refers to it: the path to a number or an object, or a constant."""
        if is_outside(leaf):
            return leaf.source
        path = self._run.outside.path_of(leaf)
        return leaf if path is None else path


def is_cached(cached: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], value: object) -> bool:
    """Whether the cache has, or gets, the result for the numbers of this call, and the result has only plain parts."""
    if not all(map(is_number_or_constant, leaves_of(value))):
        return False
    keys = [in_call(key) for key in (*arguments, *keywords.values())]
    facts = (tuple(keywords), tuple(range(len(keys))), structure_of(value))
    try:
        return has_cached(cached, *facts, *keys, *map(in_call, leaves_of(value)))
    except Exception:
        return False


def is_number_or_constant(leaf: object) -> bool:
    """Whether a leaf of a result is a symbolic number from outside or a constant."""
    return is_outside(leaf) or is_constant(leaf)


def in_call(tree: Any) -> Any:
    """Return a tree with the values that symbolic numbers from outside have in this call, which are not guarded."""
    return replace_leaves(tree, lambda leaf: leaf.source.value if is_outside(leaf) else leaf)


def identity_of(leaf: Any) -> object:
    """Return a key that is equal for equal expressions of symbols, and for equal constants."""
    if is_outside(leaf):
        return leaf.source if leaf.size is None else leaf.size.node.expr
    return leaf if is_constant(leaf) else id(leaf)


def leaves_of_keys(keys: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the leaves of the arguments of a cached function, which may be nested tuples and sizes."""
    for key in keys:
        if type(key) in (tuple, torch.Size):
            yield from leaves_of_keys(key)
        else:
            yield key


def template_of(key: Any, numbers: Iterator[int]) -> Any:
    """Return an argument with the number of each leaf in its place."""
    if type(key) not in (tuple, torch.Size):
        return next(numbers)
    items = tuple(template_of(item, numbers) for item in key)
    return (SIZE, *items) if type(key) is torch.Size else items


def containers_in(tree: object) -> Iterator[object]:
    """Yield the tuples, lists and dicts of a tree once, also those of subclasses."""
    waiting, entered = [tree], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, CONTAINERS) and id(part) not in entered:
            entered.add(id(part))
            yield part
            waiting += dict.values(part) if isinstance(part, dict) else part


def contents_of(container: Any) -> list[object]:
    """Return the items of a list, or the keys and values of a dict."""
    return [*container, *container.values()] if isinstance(container, dict) else [*container]
