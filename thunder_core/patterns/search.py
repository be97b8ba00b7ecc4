"""Search: the places in a trace where a pattern's sketch can be laid, backwards from each one that may be its last."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch

from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.tree import leaves
from thunder_core.patterns.pattern import Pattern
from thunder_core.patterns.placeholder import MISSING, Call, Item, Node, Parameter, Value, is_placeholder, node_of
from thunder_core.patterns.spelling import COMMUTATIVE_FAMILIES, CONVERSIONS, MAYBE_NOOP
from thunder_core.patterns.trace_index import TraceIndex

MOST_TRIES = 8  # ways to lay one sketch at one bound symbol that are worth proving


@dataclass(frozen=True)
class MatchCandidate:
    """A possible match: what each parameter would be, and the positions of the bound symbols."""

    arguments: tuple[Any, ...]
    positions: frozenset[int]


class _State(NamedTuple):
    """The state of a search: nodes and parameters with what they stand for, and the bound symbols in use."""

    bound: dict[Node, Any]
    positions: frozenset[int]

    def binding(self, node: Node, value: Any, *positions: int) -> _State:
        return _State({**self.bound, node: value}, self.positions.union(positions))


Goals = tuple[tuple[Any, Any], ...]


def anchors(pattern: Pattern, index: TraceIndex) -> list[int]:
    """The positions that may be the pattern's last, from the end of the trace to its beginning."""
    return sorted({p for sketch in pattern.sketches for p in _anchors(sketch.roots[-1], index)}, reverse=True)


def candidates(pattern: Pattern, index: TraceIndex, anchor: int) -> Iterator[MatchCandidate]:
    """Possible matches that end in that bound symbol."""
    for sketch in pattern.sketches:
        yield from islice(_laid(pattern, sketch.roots, index, anchor), MOST_TRIES)


def _laid(pattern: Pattern, sketch: Sequence[Value], index: TraceIndex, anchor: int) -> Iterator[MatchCandidate]:
    for state in _results(sketch, index, anchor, _State({}, frozenset()), anchor):
        if all(parameter in state.bound for parameter in pattern.parameters):
            arguments = tuple(index.known(state.bound[parameter]) for parameter in pattern.parameters)
            yield MatchCandidate(arguments, state.positions)


def _results(sketch: Sequence[Value], index: TraceIndex, position: int, state: _State, anchor: int) -> Iterator[_State]:
    """Ways to lay the last result at a position, and each one before it at the nearest position that fits."""
    if not index.free[position]:
        return
    for proxy in index.bsym_at(position).defines:
        for found in _solved(((sketch[-1], proxy),), state, index):
            yield from _earlier(sketch[:-1], index, found, anchor)


def _earlier(sketch: Sequence[Value], index: TraceIndex, state: _State, anchor: int) -> Iterator[_State]:
    if not sketch:
        yield state
    elif node_of(sketch[-1]) in state.bound:
        yield from _earlier(sketch[:-1], index, state, anchor)
    else:
        for position in _nearest(_anchors(sketch[-1], index), anchor):
            yield from _results(sketch, index, position, state, anchor)


def _nearest(positions: list[int], anchor: int) -> Iterator[int]:
    """Positions by their distance from the anchor, those before it first."""
    middle = bisect_left(positions, anchor)
    yield from reversed(positions[:middle])
    yield from positions[middle:]


def _anchors(value: Value, index: TraceIndex) -> list[int]:
    """The positions of the bound symbols that may make a value of the sketch."""
    found: set[int] = set()
    node: Any = node_of(value)
    while isinstance(node, Call | Item):
        call = node.call if isinstance(node, Item) else node
        found.update(index.by_family.get(call.family, ()))
        first = call.first
        behind_noop = call.family in MAYBE_NOOP and is_placeholder(first)
        node = node_of(first) if behind_noop else call.item
    return sorted(found)


# ---- one sketch, one place ----------------------------------------------------------------------------------------


def _solved(goals: Goals, state: _State, index: TraceIndex) -> Iterator[_State]:
    """Every way in which each expected value is the actual one beside it."""
    while goals:
        (expected, actual), goals = goals[0], goals[1:]
        if not is_placeholder(expected):
            inner = _inside(expected, actual)
            if inner is None:
                return
            goals = inner + goals
            continue
        node = node_of(expected)
        known = state.bound.get(node, MISSING)
        if known is not MISSING:
            if not _same(known, actual):
                return
        elif isinstance(node, Parameter):
            if not _may_be(node, actual):
                return
            state = state.binding(node, actual)
        else:
            for more, further in _steps(node, actual, state, index):
                yield from _solved(more + goals, further, index)
            return
    yield state


def _inside(expected: Any, actual: Any) -> Goals | None:
    """The conditions on the parts, constants aside; None where a tensor of the program meets something else."""
    if isinstance(actual, Proxy):
        return None
    if isinstance(expected, slice) and isinstance(actual, slice):
        expected, actual = ((value.start, value.stop, value.step) for value in (expected, actual))
    if not any(is_placeholder(leaf) for leaf in leaves(expected)):
        return None if any(isinstance(leaf, Proxy) for leaf in leaves(actual)) else ()
    if not isinstance(expected, tuple | list) or not isinstance(actual, tuple | list) or len(expected) != len(actual):
        return None
    return tuple(zip(expected, actual, strict=True))


def _steps(node: Call | Item, actual: Any, state: _State, index: TraceIndex) -> Iterator[tuple[Goals, _State]]:
    """Ways in which a call may make a value of the program: what must hold besides, and what is settled with it."""
    if not isinstance(actual, Proxy):
        return
    yield from _made_by(node, actual, state, index)
    if isinstance(node, Call) and node.family in MAYBE_NOOP:
        yield ((node.first, actual),), state.binding(node, actual)


def _made_by(node: Call | Item, actual: Proxy, state: _State, index: TraceIndex) -> Iterator[tuple[Goals, _State]]:
    position = index.producer.get(actual.name)
    if position is None or not index.free[position]:
        return
    output = index.bsym_at(position).output
    item = node if isinstance(node, Item) else node.item
    if item is not None and _item(output, item.index) is actual and state.bound.get(item.call, position) == position:
        settled = state.binding(node, actual, position).binding(item.call, position)
        yield from ((goals, settled) for goals in _pairings(item.call, position, index))
    if isinstance(node, Call) and index.families[position] == node.family and isinstance(output, Proxy):
        settled = state.binding(node, actual, position)
        yield from ((goals, settled) for goals in _pairings(node, position, index))


def _item(output: Any, index: int) -> Any:
    inside = isinstance(output, tuple | list) and -len(output) <= index < len(output)
    return output[index] if inside else None


def _pairings(call: Call, position: int, index: TraceIndex) -> Iterator[Goals]:
    """The arguments of a call beside those of a bound symbol of its family; both ways for commutative ones."""
    if index.families[position] != call.family:
        return
    if call.family in CONVERSIONS:
        yield ((call.first, index.bsym_at(position).args[0]),)
        return
    expected, actual = call.arguments, index.arguments(position)
    if any(name not in actual and is_placeholder(value) for name, value in expected.items()):
        return
    if any(name not in expected and isinstance(value, Proxy) for name, value in actual.items()):
        return
    pairs = tuple((value, actual[name]) for name, value in expected.items() if name in actual)
    if all(_plausible(value, other, index) for value, other in pairs):
        yield pairs
    if call.family in COMMUTATIVE_FAMILIES and len(pairs) > 1:
        (first, one), (second, two), *rest = pairs
        if _plausible(first, two, index) and _plausible(second, one, index):
            yield ((first, two), (second, one), *rest)


def _plausible(expected: Any, actual: Any, index: TraceIndex) -> bool:
    """Whether what makes a value is of the family that it would have to be of: a look ahead that is cheap."""
    node = expected._node if type(expected) is Value else None
    if type(node) is not Call or node.family in MAYBE_NOOP or node.item is not None:
        return True
    position = index.producer.get(actual.name) if isinstance(actual, Proxy) else None
    return position is not None and index.families[position] == node.family


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Proxy) or isinstance(other, Proxy):
        return isinstance(one, Proxy) and isinstance(other, Proxy) and one.name == other.name
    return type(one) is type(other) and repr(one) == repr(other)


def _may_be(parameter: Parameter, actual: Any) -> bool:
    if parameter.kind is None:
        return True
    if parameter.kind is torch.Tensor:
        return isinstance(actual, TensorProxy)
    return type(actual) in (int, float) and (parameter.kind is float or type(actual) is int)
