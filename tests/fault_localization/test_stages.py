"""Transforms that change the results of a program."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.fault_localization.examined import examine_call, numbers, program_of, silu
from tests.planted.bound_symbols import Planted
from tests.planted.programs import with_transformed_trace
from thunder_core.workflow.fault_localization.examination import examine


def two_layers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two layers that differ in their operands and in a constant."""
    return torch.tanh(x - y) * 0.5 + silu(y / x)


@pytest.mark.parametrize("number", range(10))
def test_a_wrong_transform_is_named(number):
    x, y = numbers().abs() + 1, numbers(seed=1).abs() + 1
    report = examine_call(two_layers, options={"transforms": [Planted(number)]}, x=x, y=y)
    assert {(fault.kind, fault.by) for fault in report.faults} == {("transform", "planted")}


def test_a_line_that_raises():
    indexed = lambda x, index: x[index] + x[index * 0]  # noqa: E731
    x, index = numbers(4), torch.tensor([0, 1])
    program = program_of(indexed, x=x, index=index)
    acquired = program.traces("computation")[0]
    lines = list(acquired.bound_symbols)
    lines[0] = replace(lines[0], args=(lines[0].args[0], 7))
    wrong = with_transformed_trace(program, acquired.having(lines, made_by="takes another"))
    (fault,) = examine(wrong, indexed, (), {"x": x, "index": index}).faults
    assert (fault.kind, fault.by) == ("transform", "takes another")
    assert "raises IndexError" in fault.difference


def test_a_right_program():
    x, y = numbers().abs() + 1, numbers(seed=1)
    report = examine_call(two_layers, x=x, y=y)
    assert not report.faults
