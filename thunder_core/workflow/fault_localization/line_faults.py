"""Faults of lines: a wrong bound symbol and its error, as plain data."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_core.backend.claiming.claim import EAGER
from thunder_core.backend.claiming.comparison import Difference
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.proxy import TensorProxy, dtype_name
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves
from thunder_core.workflow.validation.internal_check import Fault, FaultKind, TensorFacts


def line_fault(
    kind: FaultKind,
    by: str,
    trace: str,
    bsym: BoundSymbol,
    result: str,
    difference: Difference,
    operations: Iterable[BoundSymbol] = (),
) -> Fault:
    """Return the fault of a bound symbol, with its module, its source line and its inputs.

    `operations` are the operations that the bound symbol replaces, if it is not itself an operation. The text of
    `difference` is a complete phrase.
    """
    names = [operation.symbol.name for operation in operations] or [bsym.symbol.name]
    return Fault(
        kind=kind,
        by=by,
        trace=trace,
        line=bound_symbol_text(bsym),
        operations=tuple(dict.fromkeys(names)),
        result=result,
        difference=difference.what,
        error=difference.largest,
        module=bsym.module,
        source=str(bsym.source or ""),
        inputs=tuple(tensor_facts(proxy) for proxy in bsym.inputs if isinstance(proxy, TensorProxy)),
    )


def stage_line_fault(stage: Trace, bsym: BoundSymbol, result: str, difference: Difference) -> Fault:
    """Return the fault of a line of a stage, caused by the line's executor or by the transform that made the stage."""
    executor = bsym.executor if bsym.executor != EAGER else ""
    kind: FaultKind = "executor" if executor else "transform"
    return line_fault(kind, executor or stage.made_by, stage.name, bsym, result, difference)


def return_fault(kind: FaultKind, trace: Trace, result: str, difference: Difference) -> Fault:
    """Return the fault of a trace's return statement, if no line of the trace is wrong."""
    returned = ", ".join(map(str, leaves(trace.output)))
    return Fault(
        kind=kind,
        by=trace.made_by,
        trace=trace.name,
        line=f"return ({returned})",
        result=result,
        difference=difference.what,
        error=difference.largest,
    )


def phrase_of_result(name: str, difference: Difference) -> Difference:
    """Return the difference as a phrase about a result."""
    return Difference(f"`{name}` {difference.what}", difference.largest)


def tensor_facts(proxy: TensorProxy) -> TensorFacts:
    """Return the metadata of a proxy; symbolic sizes are the traced numbers."""
    return TensorFacts(
        name=proxy.name,
        dtype=dtype_name(proxy.dtype),
        shape=tuple(map(hint_of, proxy.shape)),
        stride=tuple(map(hint_of, proxy.stride)),
    )
