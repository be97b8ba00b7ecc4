"""The memory that a computation takes, bound symbol by bound symbol: of a trace, or of what was compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from thunder_core.backend.claiming.free import free_after_last_use
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import AUTOGRAD_OFF, NOTHING_FOLLOWED, last_program
from thunder_core.compilation.memory.sizes import at_upper_ends
from thunder_core.compilation.memory.use import MemoryUse, Meter, memory_use
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative, unpacking
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace

RECORDED = "this does not include the tensors that autograd saves: the program has no compiled backward ({why})"

UNFOLLOWED = ("", AUTOGRAD_OFF, NOTHING_FOLLOWED)


def examine_memory(subject: Any) -> MemoryUse:
    """An account of the bytes that are held after each bound symbol, with the peak and where it is.

    `subject` is a trace, which is taken to run as it stands, or what `jit` or `compile` returned, of which it is the
    latest call: where that has a backward, forward and backward are one timeline, in which what the forward saves is
    there until the bound symbol of the backward that reads it last, and what the call returned is held throughout.

    Sizes are what an allocator is asked for, in bytes. Raises `WrongInputs` for anything else, and before the first
    call.
    """
    return memory_use(subject) if isinstance(subject, Trace) else program_memory(last_program(subject))


def program_memory(program: Program, *, largest: bool = False) -> MemoryUse:
    """The account of a program: of its computation, and of its backward where it has one.

    Symbolic sizes are those of the call that was traced or, with `largest`, the upper ends of their ranges.
    """
    at_size = at_upper_ends if largest else _as_traced
    forward, derivative = program.last("computation"), program.derivative
    if isinstance(derivative, ProgramDerivative):
        return _differentiated(forward, derivative, at_size)
    note = "" if program.recorded in UNFOLLOWED else RECORDED.format(why=program.recorded)
    return replace(memory_use(at_size(forward)), note=note)


def _as_traced(trace: Trace) -> Trace:
    """The trace itself, whose symbols count as what they were."""
    return trace


def _differentiated(forward: Trace, derivative: ProgramDerivative, at_size: Callable[[Trace], Trace]) -> MemoryUse:
    """Forward and backward, one after the other; the results are the caller's, and stay."""
    meter, forward = Meter(), at_size(forward)
    meter.give(proxy for proxy in forward.inputs if isinstance(proxy, TensorProxy))
    meter.keep(forward.constants)
    outside = meter.outside
    lines = list(meter.run(forward))
    saved = {proxy.name for proxy in derivative.saved}
    results = {proxy.name for proxy in forward.output[: len(forward.output) - len(saved)]}
    meter.end(saved | results)
    kept = meter.storages.size(saved | results) - meter.storages.size(results)
    for name in results:
        meter.storages.pin(name)
    backward = at_size(_latest_backward(derivative))
    meter.keep(backward.constants)
    meter.unpack(backward)
    return MemoryUse(outside, (*lines, *meter.run(backward)), kept)


def _latest_backward(derivative: ProgramDerivative) -> Trace:
    """The backward that was compiled last; before there is one, what was derived, freed as it will be."""
    compiled = [stage.trace for stage in derivative.stages if stage.trace.name == "backward"]
    if compiled:
        return compiled[-1]
    return free_after_last_use(unpacking(derivative.backward_trace()))
