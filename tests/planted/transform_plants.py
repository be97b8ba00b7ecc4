"""Faults of transforms: one line of the computation, or of the derived backward, is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.planted.bound_symbols import changed_lines
from tests.planted.plant import Plant
from tests.planted.programs import with_backward, with_transformed_trace
from tests.planted.subject import subject
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.validation.internal_check import Fault


def transform_plants(family: str) -> Iterator[Plant]:
    """Each change of one line of the traced computation, as by a transform before all others."""
    own = subject(family, executors="torch")
    for what, name, trace in changed_lines(own.program.traces("computation")[0]):
        is_named = named_by_stage(line_of(trace, name), what, "planted")
        yield Plant(
            "transform", own, f"{what}: {name}", lambda t=trace: with_transformed_trace(own.program, t), is_named
        )


def derivative_plants(family: str) -> Iterator[Plant]:
    """Each change of one line of the derived backward."""
    own = replace(subject(family, train=True, executors="torch"), all_results=True)
    derivative = own.program.derivative
    assert isinstance(derivative, ProgramDerivative)
    derivative.complete()
    derived = derivative.differentiated.full_backward
    for what, name, trace in changed_lines(derived):
        wrong = replace(trace, cotangents=dict(derived.cotangents), made_by=derived.made_by)
        is_named = named_by_stage(line_of(trace, name), what, derived.made_by)
        yield Plant("derivative", own, f"{what}: {name}", lambda t=wrong: with_backward(own.program, t), is_named)


def line_of(trace: Trace, name: str) -> str:
    """The line that defines a name, or None."""
    lines = (bsym for bsym in trace.bound_symbols if any(proxy.name == name for proxy in bsym.tensors))
    return next(map(bound_symbol_text, lines), "")


def named_by_stage(line: str, what: str, made_by: str):
    """Whether the first fault is of the line, or, for a removed line, of a line whose input changed."""

    def is_named(faults: Sequence[Fault]) -> bool:
        return faults[0].by == made_by and (faults[0].line == line or what == "left out")

    return is_named if line else lambda faults: faults[0].by == made_by
