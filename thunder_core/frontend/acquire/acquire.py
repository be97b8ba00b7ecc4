"""Acquisition: one interpreted run of a program on real arguments becomes its prologue, computation and epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, TracebackType
from typing import Any

import torch

from thunder_core.foundation import package
from thunder_core.foundation.errors import DataDependent, SourceLine, ThunderError
from thunder_core.foundation.options.compile_options import SharpEdges
from thunder_core.frontend.acquire.assembly import (
    Acquired,
    assembled,
    constrained,
    lasting_guards,
    prologue_of_guards,
)
from thunder_core.frontend.acquire.detours import Detours
from thunder_core.frontend.acquire.gradients import log_gradients
from thunder_core.frontend.acquire.lookasides.compiled import InEager, Nested
from thunder_core.frontend.acquire.lookasides.operators.collectives import finish_works
from thunder_core.frontend.acquire.lookasides.replaced import Replacements
from thunder_core.frontend.acquire.numbers import NeedsValues
from thunder_core.frontend.acquire.observed import observed_values
from thunder_core.frontend.acquire.outside.drawing_functions import NeedsDrawingFunction
from thunder_core.frontend.acquire.outside.sharp import SharpEdge, Surprises, apply_policy, users_line
from thunder_core.frontend.acquire.outside.symbolic import CONSTANT, IsSymbolic, Symbolic
from thunder_core.frontend.acquire.run import Run, process_state
from thunder_core.frontend.acquire.texts import NeedsTexts
from thunder_core.frontend.interpreter import interpret
from thunder_core.tracing.capture.symbolic.sizes import DecidesAgainstCall
from thunder_core.tracing.capture.symbolic_probe import HiddenNumbers
from thunder_core.tracing.capture.torch_facts.texts import without_values
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.ir.raised import ProgramRaised
from thunder_core.tracing.library.collection import collection_paused


@collection_paused()
def acquire(
    subject: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    sharp_edges: SharpEdges = "allow",
    functional: bool = False,
    device: torch.device | None = None,
    evaluates: bool = False,
    symbolic: Symbolic = CONSTANT,
    nested: Nested | None = None,
    lookasides: Sequence[Lookaside] = (),
    lines_that_raised: frozenset[SourceLine] = frozenset(),
    in_eager: InEager | None = None,
) -> Acquired:
    """Run the program once without touching data, and return its traces.

    With a `device`, which need not be here, the traces are those of the same program with its model and its arguments
    on that device. A `functional` program takes nothing but its arguments: what else it reads is a sharp edge, and not
    guarded. A program that `evaluates` may ask for the values of tensors, and checks at each call that they are the
    same. Where a value cannot be had, the program is traced once more, and told that it is being compiled where it last
    asked for that: there libraries go around values. With symbolic sizes this is tried first, and values are evaluated
    only where nothing leads around them, for a guarded value limits a program that is to serve all sizes. Numbers and
    sizes that are `symbolic` are told at each call; what the program decides by them is a constraint, and where it asks
    for their values, these are guarded. `lookasides` are called in place of the functions that they are for. At
    `lines_that_raised` operations raise what they raise for the values of this call, which the program may catch, and
    `in_eager` calls the functions around lines that need too many values.

    No object of the user's is changed when this returns or raises. Raises `ProgramRaised` where the program raises
    (with a `device`, or behind a call that a lookaside replaced: what it raises), `DataDependent`, `OperationFailed` or
    `CannotReplay` where a trace cannot hold what the program does, and `SharpEdgeError` if it has sharp
    edges and they are errors.
    """
    detours, is_differentiating, read_at_once = Detours(), False, False
    drawing_functions: frozenset[CodeType] = frozenset()
    may_evaluate = evaluates and device is None
    is_evaluating = may_evaluate and not symbolic.sizes
    while True:
        run = Run(subject, args, kwargs, device, is_evaluating, symbolic)
        run.recorder.is_differentiating = is_differentiating
        run.texts.read_at_once = read_at_once
        run.nested = nested
        run.replacements = Replacements(lookasides)
        run.detours = detours
        run.recorder.caught_errors.lines_that_raised = lines_that_raised if may_evaluate else frozenset()
        run.draws.functions = drawing_functions
        run.in_eager = in_eager if may_evaluate else None
        try:
            return traced(run, sharp_edges, functional)
        except HiddenNumbers:
            is_differentiating = True
        except NeedsTexts:
            read_at_once = True
        except NeedsDrawingFunction as needed:
            drawing_functions |= {needed.code}
        except DataDependent:
            further = detours.further()
            if further is None and (is_evaluating or not may_evaluate):
                raise
            is_evaluating = is_evaluating or further is None
            detours = further or Detours()
        finally:
            run.release()


def traced(run: Run, sharp_edges: SharpEdges, functional: bool) -> Acquired:
    """The traces of a run, whose result is its `output` then; no object of the user's is changed.

    Who made the run releases it when nothing of it is needed any more.
    """
    run.watches = sharp_edges != "allow"
    if functional:
        run.outside.surprises = Surprises(lambda: run.place().source)
    state = process_state(run.device)
    try:
        output = run.output = _interpreted(run, state, sharp_edges)
        require_recorded(run)
        run.functions.settle()
        run.recorder.follow_autocast()
        if (failure := run.recorder.failure or run.outside.failure) is not None:
            raise failure
        edges = run.edges()
        apply_policy(sharp_edges, edges)
        log_gradients(run)
        with collection_paused():
            return assembled(run, state | run.settings.asked, output, edges)
    except Exception:
        if run.recorder.failure is not None:
            raise run.recorder.failure from None
        raise
    finally:
        run.outside.effects.undo()


def require_recorded(run: Run) -> None:
    """Raise what asks for another recording, in case the program has swallowed it."""
    if run.numbers.are_needed:
        raise NeedsValues
    if run.draws.needed is not None:
        raise run.draws.needed
    if run.recorder.met_hidden_numbers:
        raise HiddenNumbers
    run.texts.require_lasting()
    run.saved_tensors_hooks.require_no_own_pass()


def _interpreted(run: Run, state: dict[str, object], sharp_edges: SharpEdges) -> Any:
    """Interpret the program and return its result; `ProgramRaised` where it raises, after its sharp edges are told."""
    args, kwargs = run.arguments()
    try:
        with collection_paused(), torch.set_grad_enabled(torch.is_grad_enabled()), run.recorder.recording():
            output = interpret(run.subject, observer=run)(*args, **kwargs)
            finish_works(run, output)
            return output
    except (DecidesAgainstCall, HiddenNumbers, IsSymbolic, NeedsDrawingFunction, NeedsTexts, NeedsValues, ThunderError):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and error is not run.own_interrupt:  # the user's, not the program's
            raise
        if run.recorder.failure is not None:
            raise run.recorder.failure from None
        run.texts.require_lasting()
        if run.device is not None:
            raise
        if run.replacements.were_called:  # eager PyTorch does something else
            raise error.with_traceback(programs_traceback(error)) from None
        edges = run.edges()
        apply_policy(sharp_edges, edges)
        raised = _raised(run, state | run.settings.asked, error, sharp=bool(edges))
    try:
        raise raised
    finally:
        del raised  # it has the program's error, whose traceback holds this frame


def programs_traceback(error: BaseException) -> TracebackType | None:
    """The part of an error's traceback that is the program's own."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(package.FOLDER):
        entry = entry.tb_next
    return entry


def _raised(run: Run, state: Mapping[str, object], error: BaseException, *, sharp: bool) -> ProgramRaised:
    """The error of a program, with its own part of the traceback and the guards under which it was raised."""
    error.__traceback__ = programs_traceback(error)
    error.args = without_values(error.args)  # eager PyTorch makes the error that its user gets
    prologue = prologue_of_guards(run, state)
    observed = observed_values(lasting_guards(run), run.outside.symbolic)
    return ProgramRaised(error, users_line(error), prologue, observed, sharp=sharp)


__all__ = ["Acquired", "Run", "SharpEdge", "acquire", "constrained", "process_state", "traced"]
