"""Copies of the inputs of traces that may run repeatedly; large inputs that no line writes to are shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder_core.backend.claiming.copies import Values, copy_values, large_names
from thunder_core.backend.claiming.deferred_tensor import DeferredTensor, defer_all
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


def copy_inputs(inputs: Values, *traces: Trace) -> Values:
    """Return inputs for evaluating traces: large tensors that no line writes to are shared, all others are copied."""
    shared = {name: inputs[name].detach() for name in large_names(inputs)}
    shared |= {name: value for name, value in inputs.items() if isinstance(value, DeferredTensor)}
    for trace in traces if shared else ():
        for name in names_written_to(trace):
            shared.pop(name, None)
    own = copy_values({name: value for name, value in inputs.items() if name not in shared})
    return {name: shared.get(name, own.get(name)) for name in inputs}


def convert_inputs(inputs: Values, compute: Callable[[Any], Any], trace: Trace) -> Values:
    """Return the inputs in another precision; large tensors that no line writes to are converted when they are read."""
    written = names_written_to(trace)
    deferred = defer_all({name: value for name, value in inputs.items() if name not in written}, compute)
    return {name: deferred[name] if name in deferred else compute(value) for name, value in inputs.items()}


def values_read(bsym: BoundSymbol, values: Values) -> Values:
    """Return the values that a bound symbol reads; copies if it writes to any."""
    read = {proxy.name: values[proxy.name] for proxy in bsym.inputs}
    return copy_values(read) if bsym.mutates else read
