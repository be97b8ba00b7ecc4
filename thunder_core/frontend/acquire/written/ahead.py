"""Checks of values ahead of the first write, where what they hang on is cheap: then nothing has to be taken back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from thunder_core.foundation.errors import DataDependent
from thunder_core.tracing.analysis.aliasing import AliasSets, alias_sets
from thunder_core.tracing.capture.torch_facts.slices import IRRELEVANT_TO_VALUES
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.objects import EXPECTATIONS, expect_value

COPY = symbol_of(torch.ops.aten.clone.default)


@dataclass(frozen=True)
class Need:
    """The need of checks: the places behind the first write that they hang on, and what of before these write to."""

    places: frozenset[int]
    written: frozenset[str]


def checked_ahead(
    bsyms: Sequence[BoundSymbol],
    inputs: Iterable[Proxy],
    aliases: Iterable[Iterable[str]],
    next_name: Callable[[], str],
) -> tuple[BoundSymbol, ...]:
    """The bound symbols, with checks behind the first write to an input moved before it, if all checks can be.

    What a check hangs on is computed there too, in other names and on copies of what it writes to; that must make less
    than copies of all that is written to before the last check would take. Checks have to stand before the first
    collective, whatever that takes, since a collective cannot be taken back.
    """
    checks = [place for place, bsym in enumerate(bsyms) if bsym.symbol.target is expect_value]
    aliasing = alias_sets(bsyms, aliases)
    inputs_by_storage = {aliasing.representative(proxy.name): proxy for proxy in inputs}
    first = next(
        (
            place
            for place, bsym in enumerate(bsyms)
            if bsym.communicates or _writes(bsym, inputs_by_storage.keys(), aliasing)
        ),
        len(bsyms),
    )
    late = [place for place in checks if place > first]
    if not late or any(_is_other_check(bsym) for bsym in bsyms[first:]):
        return tuple(bsyms)
    need = _need(bsyms, late, first, aliasing)
    if need is None:
        return tuple(bsyms)
    places, written = sorted(need.places), need.written
    tensors = {proxy.name: proxy for bsym in bsyms for proxy in bsym.inputs if isinstance(proxy, TensorProxy)}
    protected = [proxy for place in places for proxy in bsyms[place].tensors] + [tensors[name] for name in written]
    copied = {
        proxy.name: proxy
        for bsym in bsyms[: late[-1]]
        for proxy in _written_inputs(bsym, tensors, inputs_by_storage, aliasing)
    }
    communicates = any(bsym.communicates for bsym in bsyms[: late[-1]])
    if not communicates and sum(proxy.bytes for proxy in protected) > sum(proxy.bytes for proxy in copied.values()):
        return tuple(bsyms)
    ahead = _ahead(bsyms, places, late, [tensors[name] for name in sorted(written)], next_name)
    return (*bsyms[:first], *ahead, *(bsym for place, bsym in enumerate(bsyms) if place >= first and place not in late))


def require_checks_before_collectives(bsyms: Iterable[BoundSymbol]) -> None:
    """Raise `DataDependent` for a check of a value behind a collective, which cannot be taken back where it fails."""
    collective: BoundSymbol | None = None
    for bsym in bsyms:
        collective = collective or (bsym if bsym.communicates else None)
        if collective is not None and bsym.symbol.name in EXPECTATIONS:
            raise DataDependent(
                f"the program asks for the value of a tensor behind a collective (`{collective.symbol.name}`), which "
                "cannot be taken back where a later call has another value",
                fix="ask for the value before the first collective, use torch.where, or keep the branch out of the "
                "compiled program",
                where=bsym.source,
            )


def _writes(bsym: BoundSymbol, representatives: Collection[str], aliasing: AliasSets) -> bool:
    return any(aliasing.representative(name) in representatives for name in bsym.mutates)


def _written_inputs(
    bsym: BoundSymbol, tensors: Mapping[str, TensorProxy], inputs_by_storage: Mapping[str, Proxy], aliasing: AliasSets
) -> Iterable[TensorProxy]:
    return (
        tensors[name] for name in bsym.mutates if aliasing.representative(name) in inputs_by_storage and name in tensors
    )


def _is_other_check(bsym: BoundSymbol) -> bool:
    own = bsym.symbol.name.startswith(f"{expect_value.__module__}.")
    return own and bsym.symbol.target is not expect_value


def _need(bsyms: Sequence[BoundSymbol], checks: Collection[int], first: int, aliasing: AliasSets) -> Need | None:
    """The need of all checks together; None where it cannot be computed twice."""
    wanted = frozenset(checks)
    names, representatives, places, touched = set[str](), set[str](), set[int](), set[str]()
    for place in range(max(wanted), first - 1, -1):
        bsym = bsyms[place]
        if bsym.ordered and bsym.symbol.target is expect_value:
            if place in wanted:
                names.update(proxy.name for proxy in bsym.inputs)
                representatives.update(aliasing.representative(proxy.name) for proxy in bsym.inputs)
                touched.update(proxy.name for proxy in bsym.inputs)
            continue
        writes = any(aliasing.representative(name) in representatives for name in bsym.mutates)
        if not writes and names.isdisjoint(proxy.name for proxy in bsym.outputs):
            if bsym.ordered and not bsym.outputs and bsym.symbol.name not in IRRELEVANT_TO_VALUES:
                return None  # it changes how others compute
            continue
        if bsym.keeps_place:
            return None  # it draws random numbers, or other processes would have to do it twice as well
        places.add(place)
        names.update(proxy.name for proxy in bsym.inputs)
        representatives.update(aliasing.representative(proxy.name) for proxy in bsym.inputs)
        touched.update(proxy.name for proxy in (*bsym.inputs, *bsym.outputs))
    return _computable_twice(bsyms, frozenset(places), touched, aliasing)


def _computable_twice(
    bsyms: Sequence[BoundSymbol], places: frozenset[int], touched: Collection[str], aliasing: AliasSets
) -> Need | None:
    """The need of these places; None where they touch a view of what they write to: a copy would not be one."""
    defined = {proxy.name for place in places for proxy in bsyms[place].defines}
    written = {name for place in places for name in bsyms[place].mutates}
    before = {aliasing.representative(name) for name in written}
    shared = [name for name in touched if aliasing.representative(name) in before]
    if any(name not in written for name in shared if name not in defined) or len(before) < len(written - defined):
        return None
    return Need(places, frozenset(written - defined))


def _ahead(
    bsyms: Sequence[BoundSymbol],
    places: Sequence[int],
    checks: Sequence[int],
    written: Sequence[TensorProxy],
    next_name: Callable[[], str],
) -> Iterable[BoundSymbol]:
    """The bound symbols at these places in other names, on copies of what they write to, and the checks."""
    names: dict[str, Proxy] = {}
    at = bsyms[checks[0]]
    for proxy in written:
        copy = names[proxy.name] = replace(proxy, name=next_name(), requires_grad=False)
        yield BoundSymbol(COPY, (proxy,), {}, copy, (), at.source, at.module)
    for place in sorted((*places, *checks)):
        bsym = bsyms[place]
        for output in bsym.defines:
            names[output.name] = replace(output, name=next_name())
        inner = [proxy for part in bsym.subsymbols for proxy in part.defines if proxy.name not in names]
        names |= {proxy.name: replace(proxy, name=next_name()) for proxy in inner}
        yield bsym.renamed(names)
