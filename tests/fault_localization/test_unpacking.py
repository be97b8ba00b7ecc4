"""Prologues that pass other values than the computation's inputs denote."""

from __future__ import annotations

import pytest

from tests.fault_localization.examined import numbers, program_of
from tests.fault_localization.models import Layers
from tests.planted.programs import with_trace
from tests.planted.unpacking import text_of, with_passed_tensors, with_value
from thunder_core.workflow.fault_localization.examination import examine
from thunder_core.workflow.fault_localization.probes.unpacking import follow_origin

WEIGHTS = ("first_weight", "second_weight")
SWAPPED = {"first_weight": "second_weight", "second_weight": "first_weight"}


def faults_with(change):
    """The faults of a program with a changed prologue, and the changed lines."""
    model = Layers().eval()
    program = with_trace(program_of(model, x=numbers()), "prologue", change)
    found = examine(program, model, (), {"x": numbers()}).faults
    return found, [*map(text_of, program.last("prologue").bound_symbols)]


def test_two_weights_that_are_swapped():
    found, lines = faults_with(lambda one: with_passed_tensors(one, SWAPPED))
    assert {(fault.kind, fault.result) for fault in found} == {("unpacking", name) for name in WEIGHTS}
    assert {fault.line for fault in found} == {next(line for line in lines if line.startswith("tensors = ("))}
    assert "is not module.first.weight" in found[0].difference


def test_a_weight_that_is_read_from_elsewhere():
    (fault,), _ = faults_with(lambda one: with_value(one, "second_weight", "first_weight"))
    assert (fault.kind, fault.line) == ("unpacking", "second_weight = first_weight")


def test_a_right_prologue():
    assert not faults_with(lambda prologue: prologue)[0]


@pytest.mark.parametrize(
    ("origin", "value"),
    [("module.scale", 0.5), ("kwargs['x'][1]", 2), ("args[0]", None), ("module.scale + 1", None), ("module(", None)],
)
def test_origins(origin, value):
    assert follow_origin(origin, {"module": Layers(), "args": (), "kwargs": {"x": [1, 2]}}) == value
