"""Moves checks of tensor values before the first write to an input, so that no write is undone if a check fails."""

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
from thunder_core.tracing.library.objects import CHECK_NAMES, expect_value

COPY = symbol_of(torch.ops.aten.clone.default)


@dataclass(frozen=True)
class NeededComputation:
    """The computation that moved checks need.

    `indices` are the indices of the needed bound symbols, all of which follow the first write. `written` has the names
    of the tensors that these bound symbols write to, and that exist before the first write.
    """

    indices: frozenset[int]
    written: frozenset[str]


def move_checks_ahead(
    bsyms: Sequence[BoundSymbol],
    inputs: Iterable[Proxy],
    aliases: Iterable[Iterable[str]],
    next_name: Callable[[], str],
) -> tuple[BoundSymbol, ...]:
    """Return the bound symbols, with all checks of values before the first write to an input or the first collective.

    The computation that the moved checks need is repeated before them, with new names, and on copies of the tensors
    that it writes to. No check is moved if the repeated computation needs more memory than copies of the inputs that
    are written to before the last check. A collective cannot be undone, so checks after a collective are always moved.
    """
    checks = [index for index, bsym in enumerate(bsyms) if bsym.symbol.target is expect_value]
    if not checks:
        return tuple(bsyms)
    aliasing = alias_sets(bsyms, aliases)
    inputs_by_storage = {aliasing.representative(proxy.name): proxy for proxy in inputs}
    effects = (bsym.communicates or _writes_to(bsym, inputs_by_storage.keys(), aliasing) for bsym in bsyms)
    first = next((index for index, is_effect in enumerate(effects) if is_effect), len(bsyms))
    late = [index for index in checks if index > first]
    if not late or any(_is_other_check(bsym) for bsym in bsyms[first:]):
        return tuple(bsyms)
    need = _needed_computation(bsyms, late, first, aliasing)
    if need is None:
        return tuple(bsyms)
    indices, written = sorted(need.indices), need.written
    tensors = {proxy.name: proxy for bsym in bsyms for proxy in bsym.inputs if isinstance(proxy, TensorProxy)}
    copied = [tensors[name] for name in sorted(written)]
    before_last_check = bsyms[: late[-1]]
    if not any(bsym.communicates for bsym in before_last_check):
        needed = sum(proxy.bytes for index in indices for proxy in bsyms[index].tensors)
        saved = _written_inputs(before_last_check, tensors, inputs_by_storage, aliasing)
        if needed + sum(proxy.bytes for proxy in copied) > sum(proxy.bytes for proxy in saved):
            return tuple(bsyms)
    repeated = _repeated_computation(bsyms, indices, late, copied, next_name)
    return (
        *bsyms[:first],
        *repeated,
        *(bsym for index, bsym in enumerate(bsyms) if index >= first and index not in late),
    )


def require_checks_before_collectives(bsyms: Iterable[BoundSymbol]) -> None:
    """Raise `DataDependent` for a check of a value after a collective, which cannot be undone if the check fails."""
    collective: BoundSymbol | None = None
    for bsym in bsyms:
        collective = collective or (bsym if bsym.communicates else None)
        if collective is not None and bsym.symbol.name in CHECK_NAMES:
            raise DataDependent(
                f"the program asks for the value of a tensor after a collective (`{collective.symbol.name}`), which "
                "cannot be undone if a later call has another value",
                fix="ask for the value before the first collective, use torch.where, or move the branch out of the "
                "compiled program",
                where=bsym.source,
            )


def _writes_to(bsym: BoundSymbol, representatives: Collection[str], aliasing: AliasSets) -> bool:
    return any(aliasing.representative(name) in representatives for name in bsym.mutates)


def _written_inputs(
    bsyms: Sequence[BoundSymbol],
    tensors: Mapping[str, TensorProxy],
    inputs_by_storage: Mapping[str, Proxy],
    aliasing: AliasSets,
) -> list[TensorProxy]:
    """Return the tensors that bound symbols write to and that share memory with an input."""
    names = dict.fromkeys(name for bsym in bsyms for name in bsym.mutates)
    return [tensors[name] for name in names if aliasing.representative(name) in inputs_by_storage and name in tensors]


def _is_other_check(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol checks a value by a function of Thunder other than `expect_value`."""
    own = bsym.symbol.name.startswith(f"{expect_value.__module__}.")
    return own and bsym.symbol.target is not expect_value


def _needed_computation(
    bsyms: Sequence[BoundSymbol], checks: Collection[int], first: int, aliasing: AliasSets
) -> NeededComputation | None:
    """Return the computation after index `first` that the checks need; None if this computation cannot run twice."""
    check_indices = frozenset(checks)
    names, representatives, indices, touched = set[str](), set[str](), set[int](), set[str]()
    for index in range(max(check_indices), first - 1, -1):
        bsym = bsyms[index]
        if bsym.ordered and bsym.symbol.target is expect_value:
            if index in check_indices:
                names.update(proxy.name for proxy in bsym.inputs)
                representatives.update(aliasing.representative(proxy.name) for proxy in bsym.inputs)
                touched.update(proxy.name for proxy in bsym.inputs)
            continue
        writes = any(aliasing.representative(name) in representatives for name in bsym.mutates)
        if not writes and names.isdisjoint(proxy.name for proxy in bsym.outputs):
            if bsym.ordered and not bsym.outputs and bsym.symbol.name not in IRRELEVANT_TO_VALUES:
                return None  # the bound symbol changes how other operations compute
            continue
        if bsym.keeps_position:
            return None  # a draw of random numbers, or a collective, which all processes would have to run twice
        indices.add(index)
        names.update(proxy.name for proxy in bsym.inputs)
        representatives.update(aliasing.representative(proxy.name) for proxy in bsym.inputs)
        touched.update(proxy.name for proxy in (*bsym.inputs, *bsym.outputs))
    return _repeatable_computation(bsyms, frozenset(indices), touched, aliasing)


def _repeatable_computation(
    bsyms: Sequence[BoundSymbol], indices: frozenset[int], touched: Collection[str], aliasing: AliasSets
) -> NeededComputation | None:
    """Return the needed computation of these bound symbols; None if they use a view of a tensor that they write to."""
    defined = {proxy.name for index in indices for proxy in bsyms[index].defines}
    written = {name for index in indices for name in bsyms[index].mutates}
    before = {aliasing.representative(name) for name in written}
    shared = [name for name in touched if aliasing.representative(name) in before]
    if any(name not in written for name in shared if name not in defined) or len(before) < len(written - defined):
        return None
    return NeededComputation(indices, frozenset(written - defined))


def _repeated_computation(
    bsyms: Sequence[BoundSymbol],
    indices: Sequence[int],
    checks: Sequence[int],
    written: Sequence[TensorProxy],
    next_name: Callable[[], str],
) -> Iterable[BoundSymbol]:
    """Yield bound symbols and checks with new names, which compute with copies of the tensors in `written`."""
    names: dict[str, Proxy] = {}
    first_check = bsyms[checks[0]]
    for proxy in written:
        copy = names[proxy.name] = replace(proxy, name=next_name(), requires_grad=False)
        yield BoundSymbol(COPY, (proxy,), {}, copy, (), first_check.source, first_check.module)
    for index in sorted((*indices, *checks)):
        bsym = bsyms[index]
        for output in bsym.defines:
            names[output.name] = replace(output, name=next_name())
        inner = [proxy for part in bsym.subsymbols for proxy in part.defines if proxy.name not in names]
        names |= {proxy.name: replace(proxy, name=next_name()) for proxy in inner}
        yield bsym.rename(names)
