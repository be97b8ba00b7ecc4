"""The look inside the programs of a session: each line beside eager PyTorch, as a part of validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

import torch

from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import last_program, specializations_of
from thunder_core.foundation.errors import (
    NotComparable,
    OtherRandomNumbers,
    OutOfTolerance,
    ValidationError,
    WrongInputs,
    WrongResult,
)
from thunder_core.foundation.errors.tree import message_line
from thunder_core.passes.recipe.recipe import TOLERANCES
from thunder_core.tracing.library.objects import GuardFailed
from thunder_core.workflow.fault_localization.captures import captured_inputs
from thunder_core.workflow.fault_localization.examination import examine, examine_computation
from thunder_core.workflow.fault_localization.rounding import Allowance
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.validation.inside import Fault, InsideReport
from thunder_core.workflow.validation.report import GenerationReport, ValidationReport
from thunder_core.workflow.validation.verdict import BY_HAND

NOT_INSIDE = "the internal check of the program failed: {}"
SHARE = 0.5  # of the time that comparing outputs takes, for looking inside as well
AT_LEAST = 0.25  # seconds
AFTER_FAILURE = 60.0  # seconds
ReportT = TypeVar("ReportT", ValidationReport, GenerationReport)


def look_inside(session: Session, inputs: Inputs, *, seconds: float = 0.0) -> InsideReport | None:
    """Examine the program that serves inputs, for at most so many seconds (0: for all it takes).

    None for a program without traces, such as a stored one or what was acquired through Dynamo, and for a model that
    changes itself at each call, so that no program serves it twice.
    """
    with torch.set_grad_enabled(session.purpose.train):
        session.call(inputs)
        session.release()
        program = program_with_traces(session)
        try:
            return None if program is None else inside_report(session, program, inputs, seconds)
        except GuardFailed:
            return None


def inside_report(session: Session, program: Program, inputs: Inputs, seconds: float) -> InsideReport:
    """The findings of an examination, by what the recipe allows."""
    allowance = allowance_of(session)
    call = (program, session.model, (), dict(inputs))
    return examine(*call, seconds=seconds, allowance=allowance, thorough=False)


def allowance_of(session: Session) -> Allowance:
    """The errors that a session's recipe allows inside: those of rounding, unless its tolerance is a looser one."""
    dtype = session.loaded.model.dtype
    return Allowance.of(session.tolerance(dtype), TOLERANCES.get(dtype, TOLERANCES[torch.float32]))


def program_with_traces(session: Session) -> Program | None:
    """The program of the latest call, if the stages that led to it are at hand."""
    try:
        program = last_program(session.compiled)
    except WrongInputs:
        return None
    return program if has_traces(program) else None


def has_traces(program: Any) -> bool:
    """Whether the stages of a program are at hand, as they are where it was compiled."""
    return isinstance(program, Program) and len(program.stages) > 1 and len(program.traces("computation")) > 1


def look_inside_calls(session: Session, run: Callable[[], object], *, seconds: float = 0.0) -> InsideReport | None:
    """Examine the computation of each program that a run calls, on what it is given there."""
    programs = [one for one in specializations_of(session.compiled).programs if has_traces(one)]
    if not programs:
        return None
    with captured_inputs(programs) as captures:
        run()
    called = [capture for capture in captures if capture.inputs is not None]
    if not called:
        return None
    with torch.no_grad():
        share, allowance = seconds / len(called), allowance_of(session)
        reports = [examine_computation(capture, seconds=share, allowance=allowance) for capture in called]
    return reduce(InsideReport.joined, reports)


@contextmanager
def naming_the_line(look: Callable[[float], InsideReport | None]) -> Iterator[None]:
    """Have the error of a failed validation name the line that is wrong, where a look inside finds one."""
    try:
        yield
    except (OutOfTolerance, NotComparable, OtherRandomNumbers) as error:
        found = inside_after_failure(look)
        if found is not None and found.faults:
            name_fault(error, found.faults)
        raise


def inside_after_failure(look: Callable[[float], InsideReport | None]) -> InsideReport | None:
    """The findings of a look inside, behind a validation that failed; None where the look fails, too."""
    try:
        return look(AFTER_FAILURE)
    except Exception:  # the error of the validation is the one to tell
        return None


def name_fault(error: ValidationError, faults: Sequence[Fault]) -> None:
    """Add the first wrong line to an error, and how to leave it out."""
    error.what = f"{error.what}; the first wrong line is {in_words(faults[0])}{others(faults)}"
    rest = error.fix.removeprefix(BY_HAND).removeprefix("; ")
    error.fix = "; ".join(filter(None, (advice(faults[0]), rest)))
    error.faults = tuple(faults)


def with_inside(report: ReportT, look: Callable[[float], InsideReport | None], seconds: float) -> ReportT:
    """The report of a validation that took so many seconds, with a look inside for half of that or a quarter of one.

    A look that fails is noted. Raises `WrongResult` for a line that is wrong, which the outputs have hidden.
    """
    try:
        found = look(max(AT_LEAST, SHARE * seconds))
    except Exception as failure:  # the outputs agree: what cannot be run line by line is no finding
        said = message_line(failure)
        return report.model_copy(update={"notes": (*report.notes, NOT_INSIDE.format(said))})
    told = report.model_copy(update={"inside": found})
    if found is not None and found.faults:
        error = WrongResult(
            f"the outputs agree, but a line inside does not: {in_words(found.faults[0])}{others(found.faults)}",
            fix=advice(found.faults[0]),
        )
        error.report = told
        raise error
    return told


def in_words(fault: Fault) -> str:
    """A fault as a phrase: the line, where it stands, what differs and why."""
    module = f" in `{fault.module}`" if fault.module else ""
    source = f" ({fault.source})" if fault.source else ""
    return f"`{fault.line:.300}` of the {fault.trace}{module}{source}: {fault.difference}; {fault.reason}"


def others(faults: Sequence[Fault]) -> str:
    """The number of other wrong lines, in words."""
    more = len(faults) - 1
    return f" ({more} more {'line is' if more == 1 else 'lines are'} wrong)" if more else ""


def advice(fault: Fault) -> str:
    """The way to leave out what makes a line wrong, in words."""
    module = f":{fault.module}" if fault.module and fault.kind == "executor" else ""
    if fault.kind == "executor":
        return f"leave out the executor there with --without {fault.by}{module}; `thunder debug` shows details"
    if fault.kind == "transform":
        return f"leave out the transform `{fault.by}`; `thunder debug` shows details"
    return "run `thunder debug`, which writes a reproduction, and report it"


def timed(run: Callable[[], ReportT]) -> tuple[ReportT, float]:
    """The report that a run returns, and the seconds that it takes."""
    start = time.perf_counter()
    report = run()
    return report, time.perf_counter() - start
