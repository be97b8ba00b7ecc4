"""Computations that were acquired otherwise than the program computes."""

from __future__ import annotations

import torch

from tests.fault_localization.examined import numbers, program_of, silu
from tests.planted.bound_symbols import changed
from tests.planted.programs import with_transformed
from thunder_core.fault_localization.eager_calls import RecordCalls
from thunder_core.fault_localization.examination import examine
from thunder_core.runtime.program import Program


def two_calls(x: torch.Tensor) -> torch.Tensor:
    """A few calls of PyTorch, one of them a method."""
    return silu(x * 2).tanh() * 0.5


def acquired_wrongly(program: Program, number: int) -> tuple[Program, str, str]:
    """The program as if another computation had been acquired, what is other, and the name that the line defines."""
    what, name, trace = list(changed(program.traces("computation")[0]))[number]
    wrong = with_transformed(program, trace)
    stages = [stage for stage in wrong.stages if stage.trace is not program.traces("computation")[0]]
    return type(program)(tuple(stages), program.guards, places=program.places), what, name


def test_a_line_that_the_program_does_not_run():
    program = program_of(two_calls, x=numbers())
    for number in range(len(list(changed(program.traces("computation")[0])))):
        wrong, what, name = acquired_wrongly(program, number)
        (fault,) = examine(wrong, two_calls, (), {"x": numbers()}).faults
        assert fault.kind == "acquisition"
        assert fault.trace == "computation"
        assert fault.result == name or what == "left out"


def test_calls_are_recorded_with_what_they_return():
    x = numbers()
    with RecordCalls() as recorder:
        two_calls(x)
    assert [call.function.__name__ for call in recorder.calls] == ["mul", "silu", "tanh", "mul"]
    assert torch.equal(recorder.calls[-1].results[0], two_calls(numbers()))
