"""Freeing: each tensor's name is deleted after the line that reads it last, so that its memory can be used again."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.trace import Trace

DELETE = Symbol("python.del", lambda *names: None)


def free_after_last_use(trace: Trace) -> Trace:
    """The trace with `del` lines; inputs are the caller's, constants the trace's, and what is returned lives on."""
    live = {proxy.name for proxy in (*trace.outputs, *trace.inputs)} | trace.constants.keys()
    lines: list[BoundSymbol] = []
    for bsym in reversed(trace.bound_symbols):
        last: dict[str, Proxy] = {
            proxy.name: proxy for proxy in (*bsym.inputs, *bsym.defines) if proxy.name not in live
        }
        if last:
            lines.append(deletion(last.values(), bsym))
        live |= last.keys()
        lines.append(bsym)
    return trace.having(reversed(lines), made_by="free after last use")


def deletion(names: Iterable[Proxy], after: BoundSymbol) -> BoundSymbol:
    """The line that deletes names, at the place of the one before it."""
    return BoundSymbol(DELETE, tuple(names), {}, None, source=after.source, module=after.module, derives=after.derives)
