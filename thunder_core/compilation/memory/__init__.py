"""The memory that the tensors of a trace or of a compiled program occupy after each bound symbol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thunder_core.backend.claiming.free import free_after_last_use, take_single_list
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import AUTOGRAD_OFF, NOTHING_REQUIRES_GRAD, last_program
from thunder_core.compilation.memory.sizes import at_upper_ends
from thunder_core.compilation.memory.use import MemoryUse, Meter, memory_use
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace

RECORDED_NOTE = "this does not include the tensors that autograd saves: the program has no compiled backward ({why})"

REASONS_WITHOUT_GRADIENTS = ("", AUTOGRAD_OFF, NOTHING_REQUIRES_GRAD)


def examine_memory(subject: object) -> MemoryUse:
    """Return the bytes that are allocated after each bound symbol, with the peak and its line.

    `subject` is a trace, or the result of `jit` or `compile`, of which the latest call is examined. If the call has a
    backward, the result covers the forward followed by the backward. A tensor that the forward saves stays allocated
    until its last reader in the backward. The results of the call stay allocated to the end.

    Sizes are the bytes requested from the allocator. Raises `WrongInputs` for other subjects, and for a subject that
    has not been called.
    """
    return memory_use(subject) if isinstance(subject, Trace) else program_memory(last_program(subject))


def program_memory(program: Program, *, largest: bool = False) -> MemoryUse:
    """Return the memory use of a program: of its computation, and of its backward if it has one.

    Symbolic sizes have the values of the traced call or, with `largest`, the upper ends of their ranges.
    """
    at_size = at_upper_ends if largest else _as_traced
    forward, derivative = program.last("computation"), program.derivative
    if isinstance(derivative, ProgramDerivative):
        return _differentiated_use(forward, derivative, at_size)
    note = (
        ""
        if program.no_backward_reason in REASONS_WITHOUT_GRADIENTS
        else RECORDED_NOTE.format(why=program.no_backward_reason)
    )
    return replace(memory_use(at_size(forward)), note=note)


def _as_traced(trace: Trace) -> Trace:
    """Return the trace itself, with the traced values of its symbols."""
    return trace


def _differentiated_use(forward: Trace, derivative: ProgramDerivative, at_size: Callable[[Trace], Trace]) -> MemoryUse:
    """Return the memory use of the forward followed by the backward. The results belong to the caller: they stay."""
    meter, forward = Meter(), at_size(forward)
    meter.add_permanent(proxy for proxy in forward.inputs if isinstance(proxy, TensorProxy))
    meter.add_constants(forward.constants)
    outside = meter.outside
    lines = list(meter.run(forward))
    saved = {proxy.name for proxy in derivative.saved}
    results = {proxy.name for proxy in forward.output[: len(forward.output) - len(saved)]}
    meter.end_function(saved | results)
    saved_bytes = meter.storages.size(saved | results) - meter.storages.size(results)
    for name in results:
        meter.storages.pin(name)
    backward = at_size(_latest_backward(derivative))
    meter.add_constants(backward.constants)
    meter.add_unpacked(backward)
    return MemoryUse(outside, (*lines, *meter.run(backward)), saved_bytes)


def _latest_backward(derivative: ProgramDerivative) -> Trace:
    """Return the latest compiled backward. If there is none yet, return the derived trace with `del` statements."""
    compiled = [stage.trace for stage in derivative.stages if stage.trace.name == "backward"]
    if compiled:
        return compiled[-1]
    return free_after_last_use(take_single_list(derivative.backward_trace()))
