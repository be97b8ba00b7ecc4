"""Matches: bound symbols that are proved to compute the same as a pattern and may be replaced by one bound symbol."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from thunder_core.backend.patterns.outcome import FunctionOutcome, describe_layout, names_of_floats, proxies_in
from thunder_core.backend.patterns.pattern import Pattern
from thunder_core.backend.patterns.replacement import Replacement
from thunder_core.backend.patterns.search import MatchCandidate, anchors, candidates
from thunder_core.backend.patterns.spelling import input_of_whole_slice, key
from thunder_core.backend.patterns.trace_index import TraceIndex
from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.analysis.aliasing import is_view
from thunder_core.tracing.capture.symbolic.moves import AT_HINTS, Sizing, at_hints
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace
from thunder_core.tracing.ir.tree import leaves


class NoMatch(Exception):
    """Raised if a candidate differs from the pattern or must not be replaced. The message is the reason, or empty."""


@dataclass(frozen=True)
class Match:
    """Bound symbols that have the same computation as a pattern.

    `positions` are the positions of the bound symbols. Bound symbols at `kept_positions` stay, because other bound
    symbols read their results. `position` is the position of the bound symbol that replaces the others.
    """

    positions: frozenset[int]
    kept_positions: frozenset[int]
    position: int
    results: tuple[Proxy, ...]


def apply_patterns(trace: Trace, executor: str, replacements: Sequence[Replacement]) -> Trace:
    """Return the trace with each match replaced by one bound symbol of the executor, in the order of `replacements`."""
    if not replacements:
        return trace
    index = TraceIndex(trace)
    refused_by_sizes: list[RefusedOperations] = []
    for replacement in replacements:
        replacement.pattern.refused.clear()
        refused_by_sizes += _apply_everywhere(replacement, index, executor)
    bsyms = [bsym for bsym in index.at if bsym is not None]
    return trace.having(bsyms, made_by=trace.made_by, refused=(*trace.refused, *refused_by_sizes))


def matched_positions(trace: Trace, executor: str, replacements: Sequence[Replacement]) -> Iterator[frozenset[int]]:
    """Yield the positions of each possible match. Symbolic sizes are replaced by the sizes seen while tracing."""
    index = TraceIndex(trace) if replacements else None
    for replacement in replacements:
        assert index is not None
        for anchor in anchors(replacement.pattern, index):
            for candidate in candidates(replacement.pattern, index, anchor) if index.free[anchor] else ():
                constant = MatchCandidate(at_hints(candidate.arguments), candidate.positions)
                try:
                    yield _check(replacement, constant, index, executor, AT_HINTS).match.positions
                except NoMatch:
                    continue


def _apply_everywhere(replacement: Replacement, index: TraceIndex, executor: str) -> Iterator[RefusedOperations]:
    """Replace all matches; yield the operations that would have been replaced if all sizes were constant."""
    for anchor in anchors(replacement.pattern, index):
        if index.free[anchor]:
            yield from _apply_at(replacement, index, executor, anchor)


def _apply_at(replacement: Replacement, index: TraceIndex, executor: str, anchor: int) -> Iterator[RefusedOperations]:
    """Replace the first match that ends at the anchor; add the reasons against other candidates to `refused`."""
    refused = replacement.pattern.refused
    for candidate in candidates(replacement.pattern, index, anchor):
        try:
            _replace(replacement, candidate, index, executor)
            return
        except NoMatch as error:
            matches_constant_sizes = _matches_constant_sizes(replacement, candidate, index, executor)
            why = str(error) or ("equality cannot be proved for all sizes" if matches_constant_sizes else "")
            source = index.bsym_at(max(candidate.positions)).source
            note = f"{source}: {why}" if source else why
            if why and note not in refused:
                refused.append(note)
            if matches_constant_sizes:
                name = replacement.symbol.short_name
                reason = f"{name} is called for constant sizes only, but the sizes of the program are symbolic: {why}"
                yield RefusedOperations(executor, reason, len(candidate.positions), by_sizes=True)


def _replace(replacement: Replacement, candidate: MatchCandidate, index: TraceIndex, executor: str) -> None:
    """Replace a match, and require the conditions on symbolic sizes under which the replacement is correct."""
    environment = _environment_of(candidate)
    if environment is None:
        checked = _check(replacement, candidate, index, executor)
    else:
        source = index.bsym_at(max(candidate.positions)).source
        location = f" at {source}" if source else ""
        with environment.deciding_for(f"needed by {executor} for {replacement.symbol.short_name}{location}"):
            checked = _check(replacement, candidate, index, executor)
            environment.require(checked.conditions)
    index.replace(checked.match.positions, checked.match.kept_positions, checked.match.position, checked.bsym)


def _matches_constant_sizes(
    replacement: Replacement, candidate: MatchCandidate, index: TraceIndex, executor: str
) -> bool:
    """Whether a refused candidate would be a match if its symbolic sizes were the sizes seen while tracing."""
    if _environment_of(candidate) is None:
        return False
    constant = MatchCandidate(at_hints(candidate.arguments), candidate.positions)
    try:
        _check(replacement, constant, index, executor, AT_HINTS)
    except NoMatch:
        return False
    return True


def _environment_of(candidate: MatchCandidate) -> Any:
    return environment_of(leaf for leaf in leaves(candidate.arguments) if isinstance(leaf, Proxy))


@dataclass(frozen=True)
class _AcceptedMatch:
    """A match with its bound symbol, and the conditions on symbolic sizes under which the replacement is correct."""

    match: Match
    bsym: BoundSymbol
    conditions: tuple[sympy.Basic, ...]


def _check(
    replacement: Replacement,
    candidate: MatchCandidate,
    index: TraceIndex,
    executor: str,
    sizing: Sizing | None = None,
) -> _AcceptedMatch:
    """Return the match of a candidate; raise `NoMatch` if the candidate must not be replaced.

    `sizing` compares symbolic sizes; None means the environment of the pattern's outcome.
    """
    last = index.bsym_at(max(candidate.positions))
    grad = _grad_mode(candidate, index)
    outcome = _outcome(replacement.pattern, candidate, grad)
    match = require_replaceable(prove(outcome, candidate, index, sizing or outcome.environment), candidate, index)
    output = match.results[0] if outcome.single else match.results
    bsym = BoundSymbol(
        symbol=replacement.symbol,
        args=candidate.arguments,
        kwargs={},
        output=output if sizing is None else at_hints(output),
        subsymbols=tuple(index.bsym_at(position) for position in sorted(match.positions)),
        source=last.source,
        module=last.module,
        executor=executor,
    )
    if not replacement.supports(bsym):
        raise NoMatch(f"{executor} does not support the operands")
    replaced = replacement.outcome(candidate.arguments, grad, outcome)
    if isinstance(replaced, str):
        raise NoMatch(replaced)
    return _AcceptedMatch(match, bsym, (*outcome.conditions, *replaced.conditions))


def _grad_mode(candidate: MatchCandidate, index: TraceIndex) -> bool:
    modes = {index.grad[position] for position in candidate.positions}
    if len(modes) > 1:
        raise NoMatch("the grad mode changes in between")
    return modes.pop()


def _outcome(pattern: Pattern, candidate: MatchCandidate, grad: bool) -> FunctionOutcome:
    """Return the outcome of the pattern for the arguments; raise `NoMatch` if the function fails on them."""
    try:
        return pattern.outcome(candidate.arguments, grad)
    except ThunderError:
        raise
    except Exception as error:  # the user's function may raise any exception for tensors of other shapes
        raise NoMatch("") from error


# ---- the proof that a candidate computes the pattern --------------------------------------------------------------


def prove(
    outcome: FunctionOutcome, candidate: MatchCandidate, index: TraceIndex, sizing: Sizing | None
) -> tuple[Proxy, ...]:
    """Return the pattern's results as proxies of the trace; raise `NoMatch` unless the operations are the same."""
    names = {proxy.name: f"x{number}" for number, proxy in enumerate(proxies_in(candidate.arguments))}
    names |= {proxy.name: name for proxy, name in names_of_floats(candidate.arguments).items()}
    outputs: dict[str, Proxy] = {}
    matched_keys: set[Hashable] = set()
    matched = (index.bsym_at(position) for position in sorted(candidate.positions))
    for operation in (inner for bsym in matched for inner in (bsym.subsymbols or (bsym,))):
        sliced = input_of_whole_slice(operation)
        computed = None if sliced is not None else key(operation, names, sizing)
        if sliced is not None and sliced.name in names:
            names[operation.output.name] = names[sliced.name]
        elif computed in outcome.by_key:
            matched_keys.add(computed)
            results = [leaf for leaf in leaves(operation.output) if isinstance(leaf, Proxy)]
            for result, name in zip(results, outcome.by_key[computed], strict=True):
                names[result.name], outputs[name] = name, result
        elif any(proxy.name in index.returned or index.readers.get(proxy.name) for proxy in operation.defines):
            raise NoMatch("")
    if len(matched_keys) < len(outcome.by_key):
        raise NoMatch("")
    proxies = tuple(outputs.get(outcome.value_names[proxy.name], proxy) for proxy in outcome.results)
    for result, like in zip(proxies, outcome.results, strict=True):
        if not isinstance(result, TensorProxy) or describe_layout(result, sizing) != describe_layout(like, sizing):
            raise NoMatch("")  # operands in another order may give other strides
    return proxies


# ---- the conditions for a replacement -----------------------------------------------------------------------------


def require_replaceable(results: tuple[Proxy, ...], candidate: MatchCandidate, index: TraceIndex) -> Match:
    """Return the match with its replacement position.

    Raises `NoMatch` if a replacement would change the behaviour of the other bound symbols.
    """
    positions = candidate.positions
    defined = {proxy.name for position in positions for proxy in index.bsym_at(position).defines}
    names = {proxy.name for proxy in results}
    if len(names) < len(results) or not names <= defined:
        raise NoMatch("a result of the pattern is one of its inputs, or two of its results are the same tensor")
    between = index.effect_between(min(positions), max(positions))
    if between is not None:
        raise NoMatch(f"`{index.bsym_at(between).symbol.name}` in between has an effect")
    positions_of_views = _kept_positions(positions, names, index)
    return Match(
        positions,
        positions_of_views,
        _replacement_position(positions - positions_of_views, names, candidate, index),
        results,
    )


def _kept_positions(positions: frozenset[int], names: set[str], index: TraceIndex) -> frozenset[int]:
    """Return the positions of views that are also read outside of the match.

    Raises `NoMatch` if any other intermediate value is read outside of the match.
    """
    positions_of_views: set[int] = set()
    for position in sorted(positions, reverse=True):
        bsym = index.bsym_at(position)
        inner = [proxy for proxy in bsym.defines if proxy.name not in names]
        read = [
            proxy
            for proxy in inner
            if proxy.name in index.returned or (index.readers.get(proxy.name, set()) - (positions - positions_of_views))
        ]
        if not read:
            continue
        if not is_view(bsym) or len(inner) < len(bsym.defines):
            raise NoMatch(f"`{read[0].name}` is also read outside of the match")
        positions_of_views.add(position)
    return frozenset(positions_of_views)


def _replacement_position(free: frozenset[int], names: set[str], candidate: MatchCandidate, index: TraceIndex) -> int:
    """Return the last freed position that is before every reader and after every input; raise `NoMatch` if none is."""
    readers = {reader for name in names for reader in index.readers.get(name, ())} - free
    first = min(readers, default=len(index.at))
    inputs = [index.producer.get(leaf.name, -1) for leaf in leaves(candidate.arguments) if isinstance(leaf, Proxy)]
    positions_between = [position for position in free if max(inputs, default=-1) < position < first]
    if not positions_between:
        raise NoMatch("a result is read before the last input is computed")
    return max(positions_between)
