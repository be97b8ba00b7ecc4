"""Freeing: each tensor's name is deleted after the line that reads it last, so that its memory can be used again."""

from __future__ import annotations

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
            lines.append(BoundSymbol(DELETE, tuple(last.values()), {}, None, source=bsym.source, module=bsym.module))
        live |= last.keys()
        lines.append(bsym)
    return trace.having(reversed(lines), made_by="free after last use")
