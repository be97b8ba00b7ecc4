"""Inputs of computations, copied while other code calls the program."""

from __future__ import annotations

import torch

import thunder_core as thunder
from tests.fault_localization.examined import activating, numbers, silu, silu_sum
from thunder_core.compilation.compiler import specializations_of
from thunder_core.workflow.fault_localization.captures import captured_inputs
from thunder_core.workflow.fault_localization.examination import examine_computation


def test_the_first_call_of_each_program():
    executor = activating(lambda x: silu(x) + (x.shape[1] == 6) * 1e-3)
    compiled = thunder.jit(silu_sum, executors=(executor, "torch"))
    calls = [numbers(4, 8), numbers(4, 6), numbers(4, 6, seed=1)]
    for x in calls:
        compiled(x)
    programs = specializations_of(compiled).programs
    with captured_inputs(programs) as captures:
        for x in calls:
            compiled(x.clone())
    found = {tuple(capture.inputs["x"].shape): capture for capture in captures}
    assert torch.equal(found[4, 6].inputs["x"], calls[1])
    assert not examine_computation(found[4, 8]).faults
    (fault,) = examine_computation(found[4, 6]).faults
    assert fault.by == "mine"


def test_a_program_that_is_not_called():
    compiled = thunder.jit(silu_sum, executors=("torch",))
    compiled(numbers())
    with captured_inputs(specializations_of(compiled).programs) as captures:
        pass
    assert [capture.inputs for capture in captures] == [None]
    assert not examine_computation(captures[0]).faults
