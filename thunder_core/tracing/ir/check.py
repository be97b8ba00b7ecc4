"""Check that a trace is well-formed: each name is defined once, and each name and symbol before it is read.

Python itself checks the source code that runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from thunder_core.foundation.errors import Bug
from thunder_core.tracing.ir.listing import DELETE
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, symbolic_sizes_of
from thunder_core.tracing.ir.trace import Trace, numbers_of
from thunder_core.tracing.ir.tree import leaves

REPORT = "this is a bug in Thunder: please report it with the program that was compiled"
UNPACKING = "python.code"  # the statements with which a trace unpacks its inputs from a list


def check_trace(trace: Trace) -> Trace:
    """Return the trace if it is well-formed; otherwise raise `Bug` with the step that made it and the line."""
    defined = {proxy.name for proxy in trace.inputs} | trace.constants.keys()
    for number, bsym in enumerate(trace.bound_symbols):
        unknown = [p.name for p in bsym.inputs if p.name not in defined and not isinstance(p, NumberProxy)]
        if unknown:
            raise Bug(f"{trace.made_by}: line {number} of {trace.name} reads {unknown} before definition", fix=REPORT)
        redefined = [proxy.name for proxy in bsym.defines if proxy.name in defined]
        if redefined:
            raise Bug(f"{trace.made_by}: line {number} of {trace.name} defines {redefined} again", fix=REPORT)
        defined |= {proxy.name for proxy in bsym.defines}
        for function in bsym.functions:
            check_trace(function)
        if bsym.symbol.name == DELETE:
            defined -= {proxy.name for proxy in bsym.inputs}
    missing = [proxy.name for proxy in trace.outputs if proxy.name not in defined]
    if missing:
        raise Bug(f"{trace.made_by}: {trace.name} returns {missing}, which nothing defines", fix=REPORT)
    _check_symbols(trace)
    return trace


def _check_symbols(trace: Trace) -> None:
    """Raise `Bug` for a size with an undefined symbol: neither an input of the trace nor a number that it reads has it.

    Also raise `Bug` for a symbolic number that is read or returned without a proxy.
    """
    if unnamed := [str(leaf) for leaf in leaves(trace.output) if is_unnamed(leaf)]:
        raise Bug(f"{trace.made_by}: {trace.name} returns {unnamed} without a name", fix=REPORT)
    defined = _symbols_of((*trace.inputs, *numbers_of(trace)))
    for number, bsym in enumerate(trace.bound_symbols):
        if unnamed := [str(leaf) for leaf in leaves((bsym.args, dict(bsym.kwargs))) if is_unnamed(leaf)]:
            raise Bug(f"{trace.made_by}: line {number} of {trace.name} reads {unnamed} without a name", fix=REPORT)
        symbols = _symbols_of(bsym.defines)
        if bsym.symbol.name == UNPACKING:
            defined |= symbols
        elif unknown := sorted(map(str, symbols - defined)):
            raise Bug(
                f"{trace.made_by}: line {number} of {trace.name} makes a tensor with the size {unknown}, which no "
                "input has",
                fix=REPORT,
            )


def is_unnamed(leaf: object) -> bool:
    """Whether an argument is a symbolic number without a proxy, so that the trace does not show that it is read."""
    return isinstance(leaf, torch.SymInt | torch.SymFloat)


def _symbols_of(proxies: Iterable[Proxy]) -> set[Any]:
    """Return the symbols in the sizes of tensors and in numbers."""
    return {symbol for size in symbolic_sizes_of(proxies) for symbol in size.node.expr.free_symbols}


def check_takes_numbers(trace: Trace) -> Trace:
    """Return the trace if it takes or unpacks each symbolic number that it reads; raise `Bug` otherwise."""
    unpacked = {proxy.name for bsym in trace.bound_symbols for proxy in bsym.defines}
    missing = [proxy.name for proxy in numbers_of(trace) if proxy.name not in unpacked]
    if missing:
        raise Bug(f"{trace.made_by}: {trace.name} reads {missing}, which is not one of its inputs", fix=REPORT)
    return trace
