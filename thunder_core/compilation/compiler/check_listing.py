"""The checks of a program that was compiled with the `debug` executor: what was compared, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thunder_core.backend.claiming.check import Check, checks_of
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler.last_call import every_specializations_of
from thunder_core.foundation.errors import SourceLine


@dataclass(frozen=True)
class CheckedOperation:
    """An operation that an `executor` runs, and how often its results were `compared` with eager PyTorch's.

    `largest` is the largest difference of values, which was within rounding. One that is `left_out`, for that reason,
    was not compared; neither are those that eager PyTorch itself runs, which have no check.
    """

    executor: str
    operations: tuple[str, ...]
    where: SourceLine | None
    compared: int
    largest: float
    left_out: str


def checks(compiled: Any) -> list[CheckedOperation]:
    """The operations of all programs, forward and backward, that executors other than eager PyTorch run.

    Empty for what was compiled without the `debug` executor. Raises `WrongInputs` for what was not compiled.
    """
    programs = [program for one in every_specializations_of(compiled) for program in one.programs]
    return [told(check) for program in programs for check in checks_of_program(program)]


def checks_of_program(program: Program) -> Iterator[Check]:
    """Each check of a program, once: stages of one trace hold the same."""
    backward = program.derivative.stages if program.derivative is not None else ()
    traces = [stage.trace for stage in (*program.stages, *backward)]
    yield from dict.fromkeys(check for trace in traces for check in checks_of(trace.bound_symbols))


def told(check: Check) -> CheckedOperation:
    """The operation of a check, with what it has compared until now, as plain data."""
    claimed = check.claimed
    operations = tuple(dict.fromkeys(one.symbol.name for one in check.reference or (claimed,)))
    return CheckedOperation(claimed.executor, operations, claimed.source, check.compared, check.largest, check.left_out)
