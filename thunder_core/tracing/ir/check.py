"""Checks that a trace is well-formed: each name and each symbol is defined before it is read, and names only once.

Python itself checks the text that runs.
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
UNPACKING = "python.code"  # the statements by which a trace that is run takes its inputs out of a list


def check_trace(trace: Trace) -> Trace:
    """The trace itself, if it is well-formed; `Bug` naming the step that made it and the line otherwise."""
    defined = {proxy.name for proxy in trace.inputs} | trace.constants.keys()
    for number, bsym in enumerate(trace.bound_symbols):
        unknown = [p.name for p in bsym.inputs if p.name not in defined and not isinstance(p, NumberProxy)]
        if unknown:
            raise Bug(f"{trace.made_by}: line {number} of {trace.name} reads {unknown} before definition", fix=REPORT)
        again = [proxy.name for proxy in bsym.defines if proxy.name in defined]
        if again:
            raise Bug(f"{trace.made_by}: line {number} of {trace.name} defines {again} again", fix=REPORT)
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
    """Raise `Bug` for a tensor whose size has a symbol that no input of the trace has, nor a number that it reads.

    Likewise for a symbolic number that is read or returned past the proxies.
    """
    if unnamed := [str(leaf) for leaf in leaves(trace.output) if is_unnamed(leaf)]:
        raise Bug(f"{trace.made_by}: {trace.name} returns {unnamed} without a name", fix=REPORT)
    known = _symbols_of((*trace.inputs, *numbers_of(trace)))
    for number, bsym in enumerate(trace.bound_symbols):
        if unnamed := [str(leaf) for leaf in leaves((bsym.args, dict(bsym.kwargs))) if is_unnamed(leaf)]:
            raise Bug(f"{trace.made_by}: line {number} of {trace.name} reads {unnamed} without a name", fix=REPORT)
        symbols = _symbols_of(bsym.defines)
        if bsym.symbol.name == UNPACKING:
            known |= symbols
        elif unknown := sorted(map(str, symbols - known)):
            raise Bug(
                f"{trace.made_by}: line {number} of {trace.name} makes a tensor with the size {unknown}, which no "
                "input has",
                fix=REPORT,
            )


def is_unnamed(leaf: Any) -> bool:
    """Whether an argument is a symbolic number that no proxy stands for, so that nothing sees that it is read."""
    return isinstance(leaf, torch.SymInt | torch.SymFloat)


def _symbols_of(proxies: Iterable[Proxy]) -> set[Any]:
    """The symbols in the sizes of tensors and in numbers."""
    return {symbol for size in symbolic_sizes_of(proxies) for symbol in size.node.expr.free_symbols}


def check_takes_numbers(trace: Trace) -> Trace:
    """The trace itself, if it takes or unpacks each symbolic number that it reads; `Bug` otherwise."""
    unpacked = {proxy.name for bsym in trace.bound_symbols for proxy in bsym.defines}
    lacking = [proxy.name for proxy in numbers_of(trace) if proxy.name not in unpacked]
    if lacking:
        raise Bug(f"{trace.made_by}: {trace.name} reads {lacking}, which is not one of its inputs", fix=REPORT)
    return trace
