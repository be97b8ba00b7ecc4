"""Programs whose results differ from call to call."""

from __future__ import annotations

import itertools

import torch

from tests.fault_localization.examined import activating, examine_call, numbers, program_of, silu, silu_sum
from thunder_core.backend.claiming.check import RandomStates
from thunder_core.workflow.fault_localization import determinism
from thunder_core.workflow.fault_localization.recording import inputs_by_name, record


def test_a_kernel_that_is_not_the_same_twice():
    count = itertools.count()
    executor = activating(lambda x: torch.nextafter(silu(x), silu(x) + next(count) % 2))
    (fault,) = examine_call(silu_sum, (executor, "torch"), x=numbers()).faults
    assert (fault.kind, fault.by) == ("nondeterminism", "mine")
    assert "my_silu(" in fault.line
    assert "in the first run" in fault.difference


def test_dropout_draws_from_the_same_state():
    drops = lambda x: torch.nn.functional.dropout(x, 0.5)  # noqa: E731
    assert not examine_call(drops, x=numbers()).faults


def test_write_that_differs_from_run_to_run(monkeypatch):
    def scale(x):
        y = x * 2
        y.mul_(3)
        return y + 1

    count = itertools.count()

    def unstable_record(trace, inputs, states):
        recording = record(trace, inputs, states)
        offset = next(count)
        recording.values |= {
            name: value + offset for name, value in recording.values.items() if " after write " in name
        }
        return recording

    monkeypatch.setattr(determinism, "record", unstable_record)
    trace = program_of(scale, x=numbers()).last("computation")
    inputs = inputs_by_name(trace, (numbers(),))
    fault = determinism.first_nondeterministic_line(trace, inputs, RandomStates.now(inputs))
    assert fault is not None
    assert "mul_" in fault.line
