"""The line at which NaN or an infinity first appears."""

from __future__ import annotations

import torch

import thunder_core as thunder
from tests.fault_localization.examined import numbers, program_of
from thunder_core.backend.claiming.check import RandomStates
from thunder_core.workflow.fault_localization.non_finite import non_finite_lines
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.trace_examination import without_freeing


def lines(function, x):
    """The non-finite lines of a function by their type."""
    trace = program_of(function, x=x).traces("computation")[0]
    found = non_finite_lines(trace, inputs_by_name(trace, (x,)), RandomStates.now({}), "eager PyTorch")
    return {line.kind: line for line in found}


def test_the_first_nan():
    found = lines(lambda x: torch.log(x - 1).exp() + 1, numbers().abs())
    assert set(found) == {"NaN"}
    assert "log(" in found["NaN"].line
    assert found["NaN"].count == int((numbers().abs() < 1).sum())
    assert list(found["NaN"].largest) == ["t0"] or found["NaN"].largest


def test_a_line_within_a_region():
    x = numbers().abs()
    compiled = thunder.jit(lambda x: torch.log(x - 1).exp() + 1, executors=["inductor", "torch"])
    compiled(x)
    claimed = without_freeing(thunder.last_traces(compiled))[-1]
    assert len(claimed) == 1
    found = {line.kind: line for line in non_finite_lines(claimed, {"x": x}, RandomStates.now({}), "thunder")}
    assert "log(" in found["NaN"].line


def test_an_infinity_that_becomes_a_nan():
    found = lines(lambda x: (x / 0).relu() * 0, numbers())
    assert "/ 0" in found["infinity"].line or "div" in found["infinity"].line
    assert "NaN" in found


def test_an_input_with_a_nan():
    x = numbers()
    x[0, 0] = torch.nan
    assert lines(lambda x: x + 1, x)["NaN"].line == "the input x"


def test_finite_values():
    assert not lines(lambda x: x + 1, numbers())


def test_write_that_creates_nan_or_an_infinity():
    def divide(x):
        y = x * 2
        y.div_(x - x)
        return (y + 1) - y

    found = lines(divide, numbers())
    assert "div_" in found["infinity"].line
    assert found["infinity"].count == numbers().numel()
    assert all(magnitude < 100 for magnitude in found["infinity"].largest.values())
    assert "-" in found["NaN"].line


def test_write_through_a_view():
    def divide(x):
        y = x.abs() + 1
        y[0].sub_(2 * y[1]).log_()
        return y * 2

    assert "log_" in lines(divide, numbers().sign())["NaN"].line
