"""The list of the operations that the `debug` executor has compared with eager PyTorch, or has not compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from thunder_core.backend.claiming.check import Check, checks_of
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler.last_call import all_specializations_of
from thunder_core.foundation.errors import SourceLine


@dataclass(frozen=True)
class CheckedOperation:
    """An operation that an `executor` runs, with the number of times that its results were `compared` with eager's.

    `largest` is the largest difference of values, which was within rounding. `left_out` is the reason why the operation
    was not compared, or empty. Operations that eager PyTorch runs are not checked.
    """

    executor: str
    operations: tuple[str, ...]
    where: SourceLine | None
    compared: int
    largest: float
    left_out: str


def checks(compiled: object) -> list[CheckedOperation]:
    """Return the operations of all programs, forward and backward, that executors other than eager PyTorch run.

    The list is empty if the program was compiled without the `debug` executor. Raises `WrongInputs` if `compiled` was
    not compiled.
    """
    programs = [program for cache in all_specializations_of(compiled) for program in cache.programs]
    return [describe(check) for program in programs for check in checks_of_program(program)]


def checks_of_program(program: Program) -> Iterator[Check]:
    """Yield each check of a program once, although several stages of a trace contain it."""
    backward = program.derivative.stages if program.derivative is not None else ()
    traces = [stage.trace for stage in (*program.stages, *backward)]
    yield from dict.fromkeys(check for trace in traces for check in checks_of(trace.bound_symbols))


def describe(check: Check) -> CheckedOperation:
    """Return the operation of a check, with the results of its comparisons so far."""
    claimed = check.claimed
    operations = tuple(dict.fromkeys(bsym.symbol.name for bsym in check.reference or (claimed,)))
    return CheckedOperation(claimed.executor, operations, claimed.source, check.compared, check.largest, check.left_out)
