"""Matches: bound symbols that a pattern stands for, proved to be it, legal to take, and replaced by one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from thunder_core.analysis.aliasing import is_view
from thunder_core.errors import ThunderError
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.ir.tree import leaves
from thunder_core.patterns.outcome import Outcome, described
from thunder_core.patterns.pattern import Pattern
from thunder_core.patterns.replacement import Replacement
from thunder_core.patterns.search import MatchCandidate, anchors, candidates
from thunder_core.patterns.spelling import key
from thunder_core.patterns.trace_index import TraceIndex


class NoMatch(Exception):
    """The match is not the pattern, or may not be replaced; the message says why, if that is worth telling."""


@dataclass(frozen=True)
class Match:
    """Bound symbols that compute what a pattern does.

    `positions` are the bound symbols', `kept` those of them that stay because others read them too, and `place` is
    where the one bound symbol that replaces them goes.
    """

    positions: frozenset[int]
    kept: frozenset[int]
    place: int
    results: tuple[Proxy, ...]


def apply_patterns(trace: Trace, executor: str, replacements: Sequence[Replacement]) -> Trace:
    """The trace with each match that a pattern finds as one bound symbol of the executor, earlier patterns first."""
    if not replacements:
        return trace
    index = TraceIndex(trace)
    for each in replacements:
        each.pattern.refused.clear()
        _apply_everywhere(each, index, executor)
    kept = [bsym for bsym in index.at if bsym is not None]
    return trace.having(kept, made_by=trace.made_by)


def _apply_everywhere(replacement: Replacement, index: TraceIndex, executor: str) -> None:
    for anchor in anchors(replacement.pattern, index):
        if index.free[anchor]:
            _apply_at(replacement, index, executor, anchor)


def _apply_at(replacement: Replacement, index: TraceIndex, executor: str, anchor: int) -> None:
    """Take the first match that ends in that bound symbol; why one was not taken is told."""
    refused = replacement.pattern.refused
    for candidate in candidates(replacement.pattern, index, anchor):
        try:
            _replace(replacement, candidate, index, executor)
            return
        except NoMatch as error:
            source = index.bsym_at(max(candidate.positions)).source
            told = f"{source}: {error}" if source else str(error)
            if str(error) and told not in refused:
                refused.append(told)


def _replace(replacement: Replacement, candidate: MatchCandidate, index: TraceIndex, executor: str) -> None:
    last = index.bsym_at(max(candidate.positions))
    grad = _grad_mode(candidate, index)
    outcome = _outcome(replacement.pattern, candidate, grad)
    match = legal(proved(outcome, candidate, index), candidate, index)
    bsym = BoundSymbol(
        symbol=replacement.symbol,
        args=candidate.arguments,
        kwargs={},
        output=match.results[0] if outcome.single else match.results,
        subsymbols=tuple(index.bsym_at(position) for position in sorted(match.positions)),
        source=last.source,
        module=last.module,
        executor=executor,
    )
    if not replacement.supports(bsym):
        raise NoMatch(f"{executor} does not support it")
    if difference := replacement.differs(candidate.arguments, grad, outcome):
        raise NoMatch(difference)
    index.replaced(match.positions, match.kept, match.place, bsym)


def _grad_mode(candidate: MatchCandidate, index: TraceIndex) -> bool:
    modes = {index.grad[position] for position in candidate.positions}
    if len(modes) > 1:
        raise NoMatch("autograd is switched in between")
    return modes.pop()


def _outcome(pattern: Pattern, candidate: MatchCandidate, grad: bool) -> Outcome:
    """The outcome of the pattern for these arguments; a function that cannot take them does not match."""
    try:
        return pattern.outcome(candidate.arguments, grad)
    except ThunderError:
        raise
    except Exception as error:  # whatever the user's function raises for tensors of other shapes
        raise NoMatch("") from error


# ---- is it the pattern? -------------------------------------------------------------------------------------------


def proved(outcome: Outcome, candidate: MatchCandidate, index: TraceIndex) -> tuple[Proxy, ...]:
    """The pattern's results among the names of the trace; `NoMatch` unless the operations are the same."""
    given = {leaf.name: leaf for leaf in leaves(candidate.arguments) if isinstance(leaf, Proxy)}
    names = {name: f"x{index}" for index, name in enumerate(given)}
    made: dict[str, Proxy] = {}
    found: set[Hashable] = set()
    parts = (index.bsym_at(position) for position in sorted(candidate.positions))
    for operation in (part for bsym in parts for part in (bsym.subsymbols or (bsym,))):
        computed = key(operation, names)
        if computed in outcome.by_key:
            found.add(computed)
            results = [leaf for leaf in leaves(operation.output) if isinstance(leaf, Proxy)]
            for result, name in zip(results, outcome.by_key[computed], strict=True):
                names[result.name], made[name] = name, result
        elif any(proxy.name in index.returned or index.readers.get(proxy.name) for proxy in operation.defines):
            raise NoMatch("")
    if len(found) < len(outcome.by_key):
        raise NoMatch("")
    proxies = tuple(made.get(outcome.numbers[proxy.name], proxy) for proxy in outcome.results)
    for result, like in zip(proxies, outcome.results, strict=True):
        if not isinstance(result, TensorProxy) or described(result, False) != described(like, False):
            raise NoMatch("")  # operands in another order may give other strides
    return proxies


# ---- may it be replaced? ------------------------------------------------------------------------------------------


def legal(results: tuple[Proxy, ...], candidate: MatchCandidate, index: TraceIndex) -> Match:
    """The match with the place for its bound symbol; `NoMatch` where the rest of the program could tell."""
    positions = candidate.positions
    made = {proxy.name for position in positions for proxy in index.bsym_at(position).defines}
    names = {proxy.name for proxy in results}
    if len(names) < len(results) or not names <= made:
        raise NoMatch("a result of the pattern is one of its inputs, or twice the same")
    between = index.effect_between(min(positions), max(positions))
    if between is not None:
        raise NoMatch(f"`{index.bsym_at(between).symbol.name}` in between has an effect")
    kept = _kept(positions, names, index)
    return Match(positions, kept, _place(positions - kept, names, candidate, index), results)


def _kept(positions: frozenset[int], names: set[str], index: TraceIndex) -> frozenset[int]:
    """The bound symbols that others read too: views, which cost nothing twice; `NoMatch` for any other."""
    kept: set[int] = set()
    for position in sorted(positions, reverse=True):
        bsym = index.bsym_at(position)
        inner = [proxy for proxy in bsym.defines if proxy.name not in names]
        read = [
            proxy
            for proxy in inner
            if proxy.name in index.returned or (index.readers.get(proxy.name, set()) - (positions - kept))
        ]
        if not read:
            continue
        if not is_view(bsym) or len(inner) < len(bsym.defines):
            raise NoMatch(f"`{read[0].name}` is read outside too")
        kept.add(position)
    return frozenset(kept)


def _place(free: frozenset[int], names: set[str], candidate: MatchCandidate, index: TraceIndex) -> int:
    """The last place among the bound symbols that go which is before every reader and behind every input."""
    readers = {reader for name in names for reader in index.readers.get(name, ())} - free
    first = min(readers, default=len(index.at))
    inputs = [index.producer.get(leaf.name, -1) for leaf in leaves(candidate.arguments) if isinstance(leaf, Proxy)]
    places = [position for position in free if max(inputs, default=-1) < position < first]
    if not places:
        raise NoMatch("a result is read before the last input is there")
    return max(places)
