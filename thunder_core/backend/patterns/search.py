"""Backtracking subgraph search: the candidate matches of a pattern's sketches in a trace.

Each search starts from a bound symbol that may compute the largest output of a sketch, its anchor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch

from thunder_core.backend.patterns.pattern import Pattern
from thunder_core.backend.patterns.placeholder import (
    MISSING,
    Node,
    Parameter,
    PlaceholderCall,
    PlaceholderValue,
    ResultItem,
    is_placeholder,
    node_of,
)
from thunder_core.backend.patterns.spelling import COMMUTATIVE_FAMILIES, CONVERSIONS, MAYBE_NOOP
from thunder_core.backend.patterns.trace_index import TraceIndex
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.tree import leaves

MAX_CANDIDATES = 8  # maximum candidates of a sketch at an anchor; each costs a proof


@dataclass(frozen=True)
class MatchCandidate:
    """A possible match: the value of each parameter, and the positions of the bound symbols."""

    arguments: tuple[Any, ...]
    positions: frozenset[int]


class _State(NamedTuple):
    """The state of a search: the binding of each node of the sketch, and the positions of the bound symbols in use."""

    bindings: dict[Node, Any]
    positions: frozenset[int]

    def bind(self, node: Node, value: object, *positions: int) -> _State:
        return _State({**self.bindings, node: value}, self.positions.union(positions))


Goals = tuple[tuple[Any, Any], ...]  # pairs: a value of the sketch, and the value of the trace that it must match


def anchors(pattern: Pattern, index: TraceIndex) -> list[int]:
    """Return the positions of bound symbols that may compute the largest output of a sketch, last position first."""
    return sorted(
        {p for sketch in pattern.sketches for p in _possible_producers(sketch.roots[-1], index)}, reverse=True
    )


def candidates(pattern: Pattern, index: TraceIndex, anchor: int) -> Iterator[MatchCandidate]:
    """Yield possible matches whose largest output is computed at an anchor."""
    for sketch in pattern.sketches:
        yield from islice(_candidates_at(pattern, sketch.roots, index, anchor), MAX_CANDIDATES)


def _candidates_at(
    pattern: Pattern, sketch: Sequence[PlaceholderValue], index: TraceIndex, anchor: int
) -> Iterator[MatchCandidate]:
    for state in _match_outputs(sketch, index, anchor, _State({}, frozenset()), anchor):
        if all(parameter in state.bindings for parameter in pattern.parameters):
            arguments = tuple(index.with_requires_grad(state.bindings[parameter]) for parameter in pattern.parameters)
            yield MatchCandidate(arguments, state.positions)


def _match_outputs(
    sketch: Sequence[PlaceholderValue], index: TraceIndex, position: int, state: _State, anchor: int
) -> Iterator[_State]:
    """Yield each state in which the bound symbol at `position` computes the last output of the sketch.

    The other outputs may be computed anywhere; bound symbols near the anchor are tried first.
    """
    if not index.free[position]:
        return
    for proxy in index.bsym_at(position).defines:
        for unified in _unify(((sketch[-1], proxy),), state, index):
            yield from _match_remaining_outputs(sketch[:-1], index, unified, anchor)


def _match_remaining_outputs(
    sketch: Sequence[PlaceholderValue], index: TraceIndex, state: _State, anchor: int
) -> Iterator[_State]:
    if not sketch:
        yield state
    elif node_of(sketch[-1]) in state.bindings:
        yield from _match_remaining_outputs(sketch[:-1], index, state, anchor)
    else:
        for position in _nearest(_possible_producers(sketch[-1], index), anchor):
            yield from _match_outputs(sketch, index, position, state, anchor)


def _nearest(positions: list[int], anchor: int) -> Iterator[int]:
    """Yield the positions before the anchor, nearest first, then the positions from the anchor on."""
    middle = bisect_left(positions, anchor)
    yield from reversed(positions[:middle])
    yield from positions[middle:]


def _possible_producers(value: PlaceholderValue, index: TraceIndex) -> list[int]:
    """Return the positions of bound symbols that may produce a value of the sketch, looking through possible no-ops."""
    producers: set[int] = set()
    node: Any = node_of(value)
    while isinstance(node, PlaceholderCall | ResultItem):
        call = node.call if isinstance(node, ResultItem) else node
        producers.update(index.by_family.get(call.family, ()))
        first = call.first
        behind_noop = call.family in MAYBE_NOOP and is_placeholder(first)
        node = node_of(first) if behind_noop else call.item
    return sorted(producers)


# ---- one sketch, one position -------------------------------------------------------------------------------------


def _unify(goals: Goals, state: _State, index: TraceIndex) -> Iterator[_State]:
    """Yield each extension of a state that satisfies all goals, by unification with backtracking."""
    while goals:
        (expected, actual), goals = goals[0], goals[1:]
        if not is_placeholder(expected):
            inner = _subgoals(expected, actual)
            if inner is None:
                return
            goals = inner + goals
            continue
        node = node_of(expected)
        bound = state.bindings.get(node, MISSING)
        if bound is not MISSING:
            if not _equal(bound, actual):
                return
        elif isinstance(node, Parameter):
            if not _accepts(node, actual):
                return
            state = state.bind(node, actual)
        else:
            for more, further in _expansions(node, actual, state, index):
                yield from _unify(more + goals, further, index)
            return
    yield state


def _subgoals(expected: object, actual: object) -> Goals | None:
    """Return the goals for the items of a container; None if it cannot match.

    Constants are not compared here; the proof of a match compares them.
    """
    if _must_be_bound(actual):
        return None
    if isinstance(expected, slice) and isinstance(actual, slice):
        expected, actual = ((value.start, value.stop, value.step) for value in (expected, actual))
    if not any(is_placeholder(leaf) for leaf in leaves(expected)):
        return None if any(map(_must_be_bound, leaves(actual))) else ()
    if not isinstance(expected, tuple | list) or not isinstance(actual, tuple | list) or len(expected) != len(actual):
        return None
    return tuple(zip(expected, actual, strict=True))


def _expansions(
    node: PlaceholderCall | ResultItem, actual: object, state: _State, index: TraceIndex
) -> Iterator[tuple[Goals, _State]]:
    """Yield goals and states: each pair is a possible derivation of a value of the trace from a call of the sketch.

    A call of a family in `MAYBE_NOOP` may also have been a no-op without a bound symbol.
    """
    if not isinstance(actual, Proxy):
        return
    yield from _expansions_from_producer(node, actual, state, index)
    if isinstance(node, PlaceholderCall) and node.family in MAYBE_NOOP:
        yield ((node.first, actual),), state.bind(node, actual)


def _expansions_from_producer(
    node: PlaceholderCall | ResultItem, actual: Proxy, state: _State, index: TraceIndex
) -> Iterator[tuple[Goals, _State]]:
    position = index.producer.get(actual.name)
    if position is None or not index.free[position]:
        return
    output = index.bsym_at(position).output
    item = node if isinstance(node, ResultItem) else node.item
    if (
        item is not None
        and _item_of_output(output, item.index) is actual
        and state.bindings.get(item.call, position) == position
    ):
        extended = state.bind(node, actual, position).bind(item.call, position)
        yield from ((goals, extended) for goals in _argument_goals(item.call, position, index))
    if isinstance(node, PlaceholderCall) and index.families[position] == node.family and isinstance(output, Proxy):
        extended = state.bind(node, actual, position)
        yield from ((goals, extended) for goals in _argument_goals(node, position, index))


def _item_of_output(output: Any, index: int) -> Any:
    inside = isinstance(output, tuple | list) and -len(output) <= index < len(output)
    return output[index] if inside else None


def _argument_goals(call: PlaceholderCall, position: int, index: TraceIndex) -> Iterator[Goals]:
    """Yield the goals that pair a call's arguments with the arguments of a bound symbol of its family.

    For commutative families, the first two arguments are paired in both orders. Yields nothing if the bound symbol
    lacks an argument, or has a further argument that is a proxy.
    """
    if index.families[position] != call.family:
        return
    if call.family in CONVERSIONS:
        yield ((call.first, index.bsym_at(position).args[0]),)
        return
    expected, actual = call.arguments, index.arguments(position)
    if any(name not in actual and is_placeholder(value) for name, value in expected.items()):
        return
    if any(name not in expected and _must_be_bound(value) for name, value in actual.items()):
        return
    pairs = tuple((value, actual[name]) for name, value in expected.items() if name in actual)
    if all(_plausible(value, argument, index) for value, argument in pairs):
        yield pairs
    if call.family in COMMUTATIVE_FAMILIES and len(pairs) > 1:
        (first, left), (second, right), *rest = pairs
        if _plausible(first, right, index) and _plausible(second, left, index):
            yield ((first, right), (second, left), *rest)


def _plausible(expected: object, actual: object, index: TraceIndex) -> bool:
    """Return False if the producer of a value cannot be a call of the expected family (cheap pruning)."""
    node = expected._node if type(expected) is PlaceholderValue else None
    if type(node) is not PlaceholderCall or node.family in MAYBE_NOOP or node.item is not None:
        return True
    position = index.producer.get(actual.name) if isinstance(actual, Proxy) else None
    return position is not None and index.families[position] == node.family


def _must_be_bound(value: object) -> bool:
    """Whether the search has to bind a value of the trace; a symbolic number counts as a constant."""
    return isinstance(value, Proxy) and not isinstance(value, NumberProxy)


def _equal(left: object, right: object) -> bool:
    if isinstance(left, NumberProxy) and isinstance(right, NumberProxy):
        return bool(left.value.node.expr == right.value.node.expr)
    if isinstance(left, Proxy) or isinstance(right, Proxy):
        return isinstance(left, Proxy) and isinstance(right, Proxy) and left.name == right.name
    return type(left) is type(right) and repr(left) == repr(right)


def _accepts(parameter: Parameter, actual: object) -> bool:
    if parameter.kind is None:
        return True
    if parameter.kind is torch.Tensor:
        return isinstance(actual, TensorProxy)
    if isinstance(actual, NumberProxy):
        return parameter.kind is float or isinstance(actual.value, torch.SymInt)
    if type(actual) is Proxy:  # a number that is known only by name
        return parameter.kind is float
    return type(actual) in (int, float) and (parameter.kind is float or type(actual) is int)
