"""The internal check of a session's programs: a part of validation that compares each line with eager PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TypeVar

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
from thunder_core.workflow.validation.internal_check import Fault, InternalCheck
from thunder_core.workflow.validation.report import GenerationReport, ValidationReport
from thunder_core.workflow.validation.verdict import BISECT_FIX

CHECK_FAILED = "the internal check of the program failed: {}"
TIME_SHARE = 0.5  # the time limit of the internal check, relative to the time of comparing outputs
MIN_SECONDS = 0.25  # seconds
SECONDS_AFTER_FAILURE = 60.0  # seconds
ReportT = TypeVar("ReportT", ValidationReport, GenerationReport)


def run_internal_check(session: Session, inputs: Inputs, *, seconds: float = 0.0) -> InternalCheck | None:
    """Check the program for these inputs, for at most `seconds` seconds (0: without limit).

    Return None for a program without traces, such as a stored program or a program of Dynamo, and for a model that
    changes itself at each call, so that no program accepts it twice.
    """
    with torch.set_grad_enabled(session.purpose.train):
        session.call(inputs)
        session.release()
        program = program_with_traces(session)
        try:
            return None if program is None else check_program(session, program, inputs, seconds)
        except GuardFailed:
            return None


def check_program(session: Session, program: Program, inputs: Inputs, seconds: float) -> InternalCheck:
    """Return the report of a check within the recipe's allowance."""
    allowance = allowance_of(session)
    call = (program, session.model, (), dict(inputs))
    return examine(*call, seconds=seconds, allowance=allowance, is_thorough=False)


def allowance_of(session: Session) -> Allowance:
    """Return the error that a session's recipe allows for a line: rounding, or the recipe's larger tolerance."""
    dtype = session.loaded.model.dtype
    return Allowance.of(session.tolerance(dtype), TOLERANCES.get(dtype, TOLERANCES[torch.float32]))


def program_with_traces(session: Session) -> Program | None:
    """Return the program of the latest call if its stages are available; else None."""
    try:
        program = last_program(session.compiled)
    except WrongInputs:
        return None
    return program if has_traces(program) else None


def has_traces(program: object) -> bool:
    """Whether the stages of a program are available, as they are in the process that compiled it."""
    return isinstance(program, Program) and len(program.stages) > 1 and len(program.traces("computation")) > 1


def check_calls(session: Session, run: Callable[[], object], *, seconds: float = 0.0) -> InternalCheck | None:
    """Check the computation of each program that `run` calls, on the inputs of the call.

    Return None if no called program has traces. The check takes at most `seconds` seconds (0: without limit).
    """
    programs = [program for program in specializations_of(session.compiled).programs if has_traces(program)]
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
    return reduce(InternalCheck.join, reports)


@contextmanager
def name_wrong_line(check: Callable[[float], InternalCheck | None]) -> Iterator[None]:
    """Add the first wrong line to the error of a failed validation, if the internal check finds a wrong line."""
    try:
        yield
    except (OutOfTolerance, NotComparable, OtherRandomNumbers) as error:
        report = check_after_failure(check)
        if report is not None and report.faults:
            name_fault(error, report.faults)
        raise


def check_after_failure(check: Callable[[float], InternalCheck | None]) -> InternalCheck | None:
    """Return the report of an internal check after a failed validation; None if the check raises an error."""
    try:
        return check(SECONDS_AFTER_FAILURE)
    except Exception:  # report the error of the validation instead
        return None


def name_fault(error: ValidationError, faults: Sequence[Fault]) -> None:
    """Add the first wrong line to an error, with the option that leaves out the cause."""
    error.what = f"{error.what}; the first wrong line is {fault_in_words(faults[0])}{count_other_faults(faults)}"
    rest = error.fix.removeprefix(BISECT_FIX).removeprefix("; ")
    error.fix = "; ".join(filter(None, (advice(faults[0]), rest)))
    error.faults = tuple(faults)


def with_internal_check(report: ReportT, check: Callable[[float], InternalCheck | None], seconds: float) -> ReportT:
    """Return a validation's report with an internal check, which takes at most half the time of the validation.

    The limit is at least `MIN_SECONDS`. A check that raises an error becomes a note. Raises `WrongResult` for a wrong
    line, even if the outputs agree.
    """
    try:
        internal_check = check(max(MIN_SECONDS, TIME_SHARE * seconds))
    except Exception as failure:  # the outputs agree; lines that cannot run alone are not errors
        message = message_line(failure)
        return report.model_copy(update={"notes": (*report.notes, CHECK_FAILED.format(message))})
    extended = report.model_copy(update={"internal_check": internal_check})
    if internal_check is not None and (faults := internal_check.faults):
        error = WrongResult(
            f"the outputs agree, but a line inside is wrong: {fault_in_words(faults[0])}{count_other_faults(faults)}",
            fix=advice(faults[0]),
        )
        error.report = extended
        raise error
    return extended


def fault_in_words(fault: Fault) -> str:
    """Return a fault as a phrase: the line, its source line, the difference and the reason."""
    module = f" in `{fault.module}`" if fault.module else ""
    source = f" ({fault.source})" if fault.source else ""
    return f"`{fault.line:.300}` of the {fault.trace}{module}{source}: {fault.difference}; {fault.reason}"


def count_other_faults(faults: Sequence[Fault]) -> str:
    """Return the number of other wrong lines, in words."""
    more = len(faults) - 1
    return f" ({more} more {'line is' if more == 1 else 'lines are'} wrong)" if more else ""


def advice(fault: Fault) -> str:
    """Return the option that leaves out the cause of a wrong line, in words."""
    module = f":{fault.module}" if fault.module and fault.kind == "executor" else ""
    if fault.kind == "executor":
        return f"leave out the executor there with --without {fault.by}{module}; `thunder debug` shows details"
    if fault.kind == "transform":
        return f"leave out the transform `{fault.by}`; `thunder debug` shows details"
    return "run `thunder debug`, which writes a reproduction, and report it"


def time_run(run: Callable[[], ReportT]) -> tuple[ReportT, float]:
    """Return the report that a run returns, and the seconds that it takes."""
    start = time.perf_counter()
    report = run()
    return report, time.perf_counter() - start
