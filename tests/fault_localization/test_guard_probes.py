"""Prologues with one guard removed."""

from __future__ import annotations

import pytest
import torch

from tests.fault_localization.examined import numbers, program_of
from tests.fault_localization.models import Layers
from tests.planted.guards import without_guard
from tests.planted.programs import with_trace
from thunder_core.workflow.fault_localization.examination import examine
from thunder_core.workflow.fault_localization.guard_probes import probes
from thunder_core.workflow.fault_localization.probes.calls import SubjectCall

GUARDS = (
    "module.scale: was 0.5",
    "module.is_shifted: was False",
    "module.dropout.training: was False",
    "module.first: was an object of class Linear",
    "module.first: had no hooks",
    "Linear.forward: was forward",
    "kwargs: had the keys ['x']",
)


def program_and_model():
    """A model and its program in inference."""
    model = Layers().eval()
    with torch.no_grad():
        return program_of(model, x=numbers()), model


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_is_left_out_is_named(guard):
    program, model = program_and_model()
    number = [*map(str, program.guards)].index(guard)
    wrong = with_trace(program, "prologue", lambda prologue: without_guard(prologue, number))
    with torch.no_grad():
        faults = examine(wrong, model, (), {"x": numbers()}).faults
    assert {fault.kind for fault in faults} == {"guard"}
    assert faults[0].line == f"guard {guard}"


@pytest.mark.parametrize(
    "guard", ["module.dropout.p: was 0.5", "module.scale: was 0.5", "module.is_shifted: was False"]
)
def test_guard_that_is_left_out_is_named_for_a_model_with_random_numbers(guard):
    model = Layers().train()
    program = program_of(model, x=numbers())
    wrong = with_trace(
        program, "prologue", lambda prologue: without_guard(prologue, [*map(str, program.guards)].index(guard))
    )
    faults = examine(wrong, model, (), {"x": numbers()}).faults
    assert [fault.line for fault in faults] == [f"guard {guard}"]


def test_probes_leave_nothing_behind():
    program, model = program_and_model()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    forward = torch.nn.Linear.forward
    for probe in probes(program, SubjectCall(model, (), {"x": numbers()}), is_thorough=True):
        with probe.changed:
            pass
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert torch.nn.Linear.forward is forward
    assert torch.get_default_dtype() is torch.float32


def test_a_right_prologue():
    program, model = program_and_model()
    with torch.no_grad():
        assert not examine(program, model, (), {"x": numbers()}).faults


def test_tensors_of_a_call_are_those_of_all_arguments_and_of_the_module():
    module, position, keyword = torch.nn.Linear(2, 2), torch.ones(2), torch.ones(3)
    tensors = SubjectCall(module, (position,), {"pair": (keyword, 1)}).tensors.values()
    assert {id(tensor) for tensor in tensors} == {id(t) for t in (position, keyword, module.weight, module.bias)}
