"""Freeing: each tensor's name is deleted after the bound symbol that reads it last, so that its memory can be reused.

If a bound symbol empties its input list, the names of the tensors that it reads last are deleted before the call, so
that the list is their only owner.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from thunder_core.tracing.analysis.collectives import Waits
from thunder_core.tracing.ir import listing
from thunder_core.tracing.ir.literal import Code
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace

DELETE = Symbol(listing.DELETE, lambda *names: None)
LIST = Symbol(listing.LIST, list)
UNPACK = Symbol(listing.CODE, lambda text: text)
SAVED = "saved"  # the name of the list with the inputs of a backward


def free_after_last_use(trace: Trace) -> Trace:
    """Return the trace with `del` statements; inputs, constants and results are not deleted."""
    lists = _names_for_lists(trace)
    pairs = zip(trace.bound_symbols, last_uses(trace), strict=True)
    bsyms = [bsym for bsym, last in pairs for bsym in _with_deletion(bsym, last, lists)]
    return trace.having(bsyms, made_by="free after last use")


def last_uses(trace: Trace) -> list[list[Proxy]]:
    """Return, for each bound symbol, the names that it reads or defines and that no later bound symbol reads.

    The wait for a collective counts as a read of the collective's inputs.
    """
    live = {proxy.name for proxy in (*trace.outputs, *trace.inputs)} | trace.constants.keys()
    last_uses: list[list[Proxy]] = []
    inputs_until_wait = Waits(trace.bound_symbols).held_inputs()
    for index, bsym in reversed(list(enumerate(trace.bound_symbols))):
        used = (*bsym.inputs, *inputs_until_wait.get(index, ()), *bsym.defines)
        last = {proxy.name: proxy for proxy in used if proxy.name not in live}
        live.update(last)
        last_uses.append(list(last.values()))
    return last_uses[::-1]


def take_single_list(trace: Trace) -> Trace:
    """Return the trace with a list as its only input, which it empties, so that each value dies after its last use."""
    bsyms = [BoundSymbol(UNPACK, (Code(f"{SAVED}.pop()"),), {}, proxy) for proxy in reversed(trace.inputs)]
    return trace.having((*bsyms, *trace.bound_symbols), made_by="unpack", inputs=(Proxy(SAVED),))


def lines_after_freeing(trace: Trace, freed: Trace) -> list[int]:
    """Return, for each bound symbol of a trace, the index of its last bound symbol in `freed`.

    `freed` is the trace after `take_single_list` and `free_after_last_use`: its bound symbols may be followed by
    deletions. The last item of the list is the index of the last bound symbol of `freed`.
    """
    lines: list[int] = []
    for index, bsym in enumerate(freed.bound_symbols):
        if bsym.symbol == DELETE and lines and lines[-1] == index - 1:
            lines[-1] = index
        elif bsym.symbol not in (UNPACK, DELETE, LIST):
            lines.append(index)
    assert len(lines) == len(trace.bound_symbols)
    return [*lines, len(freed.bound_symbols) - 1]


def _with_deletion(bsym: BoundSymbol, last: Sequence[Proxy], lists: Iterator[Proxy]) -> Iterator[BoundSymbol]:
    """Yield a bound symbol, and the deletion of the names that are not read after it."""
    read = {proxy.name for proxy in bsym.inputs}
    dying = [proxy for proxy in last if proxy.name in read]
    if bsym.symbol.empties and dying:
        yield from _pass_in_list(bsym, dying, next(lists))
        last = [proxy for proxy in last if proxy.name not in read]
    else:
        yield bsym
    if last:
        yield deletion(last, bsym)


def _pass_in_list(bsym: BoundSymbol, dying: Sequence[Proxy], list_proxy: Proxy) -> Iterator[BoundSymbol]:
    """Yield a list of a bound symbol's inputs, the deletion of the `dying` names, and the call with the list."""
    yield BoundSymbol(LIST, bsym.args, {}, list_proxy, source=bsym.source, module=bsym.module)
    yield deletion(dying, bsym)
    unpack = BoundSymbol(UNPACK, (list_proxy,), {}, bsym.inputs)
    yield replace(bsym, args=(list_proxy,), subsymbols=(unpack, *bsym.subsymbols))


def deletion(names: Iterable[Proxy], at: BoundSymbol) -> BoundSymbol:
    """Return the bound symbol that deletes names, with the source line of the bound symbol `at`."""
    return BoundSymbol(DELETE, tuple(names), {}, None, source=at.source, module=at.module, derives=at.derives)


def _names_for_lists(trace: Trace) -> Iterator[Proxy]:
    """Yield names that the trace does not use."""
    used_names = {proxy.name for bsym in trace.bound_symbols for proxy in (*bsym.inputs, *bsym.outputs)}
    names = (f"given_{number}" for number in itertools.count())
    return (Proxy(name) for name in names if name not in used_names)
