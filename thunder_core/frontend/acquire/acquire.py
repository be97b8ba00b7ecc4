"""Acquisition: tracing a program in one interpreted run on real arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch

from thunder_core.foundation import package
from thunder_core.foundation.errors import ThunderError
from thunder_core.frontend.acquire.assembly import (
    Acquired,
    add_constraints,
    assemble,
    lasting_guards,
    prologue_of_guards,
)
from thunder_core.frontend.acquire.gradients import log_gradients
from thunder_core.frontend.acquire.lookasides.operators.collectives import finish_works
from thunder_core.frontend.acquire.observed import observed_values
from thunder_core.frontend.acquire.outside.sharp import SharpEdge, Surprises, apply_policy, users_line
from thunder_core.frontend.acquire.retracing import retrace
from thunder_core.frontend.acquire.run.options import DEFAULTS, RunOptions
from thunder_core.frontend.acquire.run.process_state import process_state
from thunder_core.frontend.acquire.run.run import Run
from thunder_core.frontend.interpreter import interpret
from thunder_core.tracing.capture.torch_facts.texts import without_values
from thunder_core.tracing.ir.raised import ProgramRaised
from thunder_core.tracing.ir.retrace import HidesNumbers, NeedsNumbers, Retrace
from thunder_core.tracing.library.collection import collection_paused


@collection_paused()
def acquire(
    subject: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: RunOptions = DEFAULTS
) -> Acquired:
    """Run the program once without touching data, and return its traces.

    With a device in the `options`, the traces are those of the same program with its model and its arguments on that
    device. The machine need not have the device.

    If the value of a tensor is not available, the program is traced again. In that trace, the last call of
    `torch.compiler.is_compiling()` before the value returns True, because libraries then avoid the value. With symbolic
    sizes, this detour is tried first, and values are evaluated only if no detour avoids them, because a guarded value
    restricts a program that should serve all sizes.

    The program's decisions on symbolic numbers and sizes become constraints. If the program asks for their values, the
    values are guarded.

    No object of the user is changed when this function returns or raises. Raises `ProgramRaised` if the program raises
    (with a device, if it `differs_from_eager`, or after a call that a lookaside replaced: its own error),
    `DataDependent`, `OperationFailed` or `CannotReplay` if a trace cannot represent the program, and `SharpEdgeError`
    if the program has sharp edges and they are errors.
    """

    def attempt(options: RunOptions) -> Acquired:
        run = Run(subject, args, kwargs, options)
        try:
            return trace_program(run)
        finally:
            run.release()

    return retrace(attempt, options, RunOptions.after)


def trace_program(run: Run) -> Acquired:
    """Run a program and return its traces. Set `run.output` to its result, and undo its writes to the user's objects.

    The caller releases the run when the run is not needed any more.
    """
    if run.options.functional:
        run.outside.surprises = Surprises(lambda: run.place().source)
    state = process_state(run.device)
    try:
        output = run.output = _interpret(run, state)
        require_recorded(run)
        run.functions.settle()
        run.recorder.follow_autocast()
        if (failure := run.recorder.failure or run.outside.failure) is not None:
            raise failure
        edges = run.collect_edges()
        apply_policy(run.options.sharp_edges, edges)
        log_gradients(run)
        with collection_paused():
            return assemble(run, state | run.settings.asked, output, edges)
    except Exception:
        if run.recorder.failure is not None:
            raise run.recorder.failure from None
        raise
    finally:
        run.outside.effects.undo()


def require_recorded(run: Run) -> None:
    """Raise the error that requests another recording, in case the program has swallowed it."""
    if run.numbers.are_needed:
        raise Retrace(NeedsNumbers())
    if run.draws.needed is not None:
        raise run.draws.needed
    if run.recorder.met_hidden_numbers:
        raise Retrace(HidesNumbers())
    if run.recorder.failure is None:
        run.texts.require_lasting()
    run.saved_tensors_hooks.require_no_own_pass()


def _interpret(run: Run, state: dict[str, object]) -> Any:
    """Interpret the program and return its result.

    Raise `ProgramRaised` if it raises, after reporting its sharp edges.
    """
    args, kwargs = run.arguments()
    try:
        with collection_paused(), torch.set_grad_enabled(torch.is_grad_enabled()), run.recorder.recording():
            output = interpret(run.subject, observer=run)(*args, **kwargs)
            finish_works(run, output)
            return output
    except (Retrace, ThunderError):
        raise
    except BaseException as error:
        # sent by the user, not raised by the program
        if isinstance(error, KeyboardInterrupt) and error is not run.own_interrupt:
            raise
        if run.recorder.failure is not None:
            raise run.recorder.failure from None
        run.texts.require_lasting()
        if run.device is not None:
            raise
        if run.replacements.were_called or run.options.differs_from_eager:
            raise error.with_traceback(programs_traceback(error)) from None
        edges = run.collect_edges()
        apply_policy(run.options.sharp_edges, edges)
        raised = _program_error(run, state | run.settings.asked, error, sharp=bool(edges))
    try:
        raise raised
    finally:
        del raised  # `raised` refers to the program's error, whose traceback holds this frame


def programs_traceback(error: BaseException) -> TracebackType | None:
    """The part of an error's traceback after the frames of Thunder."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(package.FOLDER):
        entry = entry.tb_next
    return entry


def _program_error(run: Run, state: Mapping[str, object], error: BaseException, *, sharp: bool) -> ProgramRaised:
    """Return the error of a program, with the program's part of the traceback and the guards of the failing call."""
    error.__traceback__ = programs_traceback(error)
    error.args = without_values(error.args)  # the user gets the error that eager PyTorch raises
    prologue = prologue_of_guards(run, state)
    observed = observed_values(lasting_guards(run), run.outside.symbolic)
    return ProgramRaised(error, users_line(error), prologue, observed, sharp=sharp)


__all__ = ["Acquired", "Run", "SharpEdge", "acquire", "add_constraints", "process_state", "trace_program"]
