"""Acquisition: interprets a program on the arguments of one call, and returns its traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from thunder_core.foundation import package
from thunder_core.foundation.errors import OperationFailed, ThunderError, UnsupportedError
from thunder_core.frontend.acquire.assembly import (
    Acquired,
    add_constraints,
    assemble,
    guards_of_later_calls,
    prologue_of_guards,
)
from thunder_core.frontend.acquire.gradients import log_gradients
from thunder_core.frontend.acquire.lookasides.rules import CALL_RULES
from thunder_core.frontend.acquire.observed import observed_values
from thunder_core.frontend.acquire.outside.sharp import SharpEdge, apply_policy, users_line
from thunder_core.frontend.acquire.retracing import retrace
from thunder_core.frontend.acquire.run.options import DEFAULTS, RunOptions
from thunder_core.frontend.acquire.run.process_state import process_state
from thunder_core.frontend.acquire.run.recorded_arms import require_distinct_tensors
from thunder_core.frontend.acquire.run.run import Run
from thunder_core.frontend.acquire.works import WAIT_FIRST, TracedWork
from thunder_core.frontend.interpreter import interpret
from thunder_core.tracing.capture.torch_facts.texts import without_values
from thunder_core.tracing.ir.program_errors import ProgramRaised
from thunder_core.tracing.ir.retrace import HidesNumbers, NeedsNumbers, Retrace, RunsInEager
from thunder_core.tracing.ir.tree import contains_itself
from thunder_core.tracing.library.collection import pause_collection


@pause_collection()
def acquire(
    subject: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: RunOptions = DEFAULTS
) -> Acquired:
    """Return the traces of a program, which is interpreted once or several times.

    Values of tensors are not computed, unless `options.evaluates_tensor_values` is set. If `options.device` is set, the
    program is traced as if its model and its arguments were on this device, which this machine need not have.

    If the program reads the value of a tensor, the program is traced again with a detour: the last call of
    `torch.compiler.is_compiling()` before the failure returns True, because many libraries then avoid the value. If no
    detour is left and `may_evaluate_tensor_values` is set, the values are evaluated, and later calls check them. With
    symbolic sizes, callers set `may_evaluate_tensor_values` and not `evaluates_tensor_values`, because a check of
    values would restrict a program for all sizes.

    The program's branches on symbolic numbers and sizes become constraints. If the program reads the value of a number
    or a size, the value is guarded.

    The user's objects are unchanged when this function returns or raises.

    Raises `ProgramRaised` if the program raises. Raises the program's own error instead if `options.device` or
    `options.differs_from_eager` is set, or if the program called a function that has a lookaside. Raises
    `DataDependent`, `OperationFailed` or `CannotReplay` if a trace cannot represent the program, and `SharpEdgeError`
    if the program has sharp edges and they are errors.
    """

    def attempt(options: RunOptions) -> Acquired:
        if options.attempts is not None:
            options.attempts.tried = options.description
        run = build_run(subject, args, kwargs, options)
        try:
            return trace_program(run)[0]
        finally:
            run.release()

    def after(options: RunOptions, error: BaseException) -> RunOptions | None:
        following = options.after(error)
        if following is not None and options.attempts is not None:
            options.attempts.end(error)  # the caller records the last run
        return following

    return retrace(attempt, options, after)


def build_run(
    subject: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: RunOptions = DEFAULTS
) -> Run:
    """Return a run with the rules of all lookasides."""
    return Run(subject, args, kwargs, options, CALL_RULES)


def trace_program(run: Run) -> tuple[Acquired, Any]:
    """Interpret a program; return its traces and its result.

    The program's writes to the user's objects are undone. The caller releases the run when the run is not needed any
    more.
    """
    state = process_state(run.options.device)
    try:
        output = _interpret(run, state)
        require_complete(run, output)
        run.functions.require_unshared_containers(output)
        run.functions.leave_changed_backwards_to_autograd()
        run.recorder.record_autocast_changes()
        if (failure := run.recorder.failure or run.outside.failure) is not None:
            raise failure
        edges = run.collect_edges()
        apply_policy(run.options.sharp_edges, edges)
        log_gradients(run)
        with pause_collection(), torch._C.DisableTorchFunction():
            return assemble(run, state | run.settings.answers, output, edges), output
    except Retrace as retrace_request:
        raise _with_guards(run, state, retrace_request) from None
    except Exception as error:
        # The program may have caught an earlier request, and raised another error.
        request = run.retrace_request or _request_of_eager_call(run, run.recorder.failure or error)
        if request is not None:
            raise _with_guards(run, state, request) from None
        if run.recorder.failure is not None:
            raise run.recorder.failure from None
        raise
    finally:
        run.outside.effects.undo()


def _request_of_eager_call(run: Run, failure: Exception) -> Retrace | None:
    """Return the request that eager PyTorch makes the call after tracing has failed, or None.

    The result is None if eager PyTorch must not make the call, or if the program can be traced with other options.
    """
    options = run.options
    if not (isinstance(failure, UnsupportedError) and failure.runs_in_eager and options.leaves_to_eager):
        return None
    if not options.symbolic.is_constant or options.after(failure) is not None:
        return None
    return Retrace(RunsInEager(failure.what, failure.fix, failure.where))


def _with_guards(run: Run, state: dict[str, Any], request: Retrace) -> Retrace:
    """Return the request. A request that eager PyTorch makes the call gets the guards under which eager also makes
    later calls.
    """
    if not isinstance(request.reason, RunsInEager):
        return request
    prologue = prologue_of_guards(run, state | run.settings.answers)
    observed = observed_values(guards_of_later_calls(run), run.outside.symbolic)
    return Retrace(replace(request.reason, prologue=prologue, observed=observed))


def require_complete(run: Run, output: object) -> None:
    """Raise `Retrace` if the program must be traced again, even if the program has caught an earlier `Retrace`.

    Raise `OperationFailed` if the program sets hooks of saved tensors and runs a backward pass itself.
    """
    if run.numbers.are_needed:
        raise Retrace(NeedsNumbers())
    run.symbolic_keys.require_unchanged(output)
    if run.retrace_request is not None:
        raise run.retrace_request
    require_distinct_tensors(run, output)
    if run.recorder.met_hidden_numbers:
        raise Retrace(HidesNumbers())
    if run.recorder.failure is None:
        run.texts.require_reusable_texts()
    run.saved_tensors_hooks.require_no_backward_pass()


def _interpret(run: Run, state: dict[str, object]) -> Any:
    """Interpret the program and return its result.

    If the program raises, report its sharp edges and raise `ProgramRaised`, or the program's own error in the cases
    that `acquire` lists.
    """
    args, kwargs = run.arguments()
    try:
        with pause_collection(), torch.set_grad_enabled(torch.is_grad_enabled()), run.recorder.recording():
            output = interpret(run.inputs.subject, observer=run)(*args, **kwargs)
            if contains_itself(output):
                run.refuse("the program returns a container that contains itself", "return its items instead")
            finish_works(run, output)
            return output
    except (Retrace, ThunderError):
        raise
    except BaseException as error:
        # The user sent this interrupt (Ctrl-C); the program did not raise it.
        if isinstance(error, KeyboardInterrupt) and error is not run.calls.interrupt:
            raise
        if run.recorder.failure is not None:
            raise run.recorder.failure from None
        run.texts.require_reusable_texts()
        if run.options.device is not None:
            raise
        if run.replacements.were_called or run.options.differs_from_eager:
            raise error.with_traceback(programs_traceback(error)) from None
        edges = run.collect_edges()
        apply_policy(run.options.sharp_edges, edges)
        raised = _program_error(run, state | run.settings.answers, error, sharp=bool(edges))
    try:
        raise raised
    finally:
        del raised  # a reference cycle: the traceback of the program's error refers to this frame


def finish_works(run: Run, output: object) -> None:
    """Record that the program waits, at its end, for all unfinished works.

    If the program returns a work, the error for it is stored as the failure of the recorder.
    """
    for work in run.calls.works:
        work.wait()
    returned = next((leaf for leaf in tree_leaves(output) if type(leaf) is TracedWork), None)
    if returned is not None:
        what = f"the program returns the work of `{returned.name}`"
        run.recorder.fail(OperationFailed(what, fix=WAIT_FIRST, where=returned.where))


def programs_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error, without Thunder's own frames at its beginning."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(package.FOLDER):
        entry = entry.tb_next
    return entry


def _program_error(run: Run, state: Mapping[str, object], error: BaseException, *, sharp: bool) -> ProgramRaised:
    """Return the `ProgramRaised` for an error of the program.

    The traceback of the error begins at the program. The prologue checks the guards of the failing call.
    """
    error.__traceback__ = programs_traceback(error)
    # Unknown values in the message become dots. Eager PyTorch raises the error again, with the values.
    error.args = without_values(error.args)
    prologue = prologue_of_guards(run, state)
    observed = observed_values(guards_of_later_calls(run), run.outside.symbolic)
    in_eager = run.options.leaves_to_eager
    return ProgramRaised(error, users_line(error), prologue, observed, sharp=sharp, may_run_in_eager=in_eager)


__all__ = ["Acquired", "Run", "SharpEdge", "acquire", "add_constraints", "build_run", "process_state", "trace_program"]
