"""Inputs of traces that may run again and again: copies of those that are written to, and the others themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder_core.backend.claiming.copies import Values, copied, is_large
from thunder_core.backend.claiming.deferred_tensor import DeferredTensor, deferred
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.ir.trace import Trace


def own_inputs(inputs: Values, *traces: Trace) -> Values:
    """The inputs for evaluations of traces: large tensors that no line writes to are shared, and all others copied."""
    shared = {name: value.detach() for name, value in inputs.items() if is_large(value)}
    shared |= {name: value for name, value in inputs.items() if isinstance(value, DeferredTensor)}
    for trace in traces if shared else ():
        for name in names_written_to(trace):
            shared.pop(name, None)
    own = copied({name: value for name, value in inputs.items() if name not in shared})
    return {name: shared.get(name, own.get(name)) for name in inputs}


def converted_inputs(inputs: Values, compute: Callable[[Any], Any], trace: Trace) -> Values:
    """The inputs in another precision: large tensors that no line of a trace writes to while they are read."""
    written = names_written_to(trace)
    return {name: compute(value) if name in written else deferred(value, compute) for name, value in inputs.items()}
