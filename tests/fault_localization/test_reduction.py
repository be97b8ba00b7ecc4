"""The shortest run of operations in which an executor is wrong."""

from __future__ import annotations

import torch

from tests.fault_localization.examined import activating, numbers, program_of, silu
from thunder_core.workflow.fault_localization import reduction
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.reduction import first_indices, reduced_program
from thunder_core.workflow.fault_localization.time_limit import Deadline
from thunder_core.workflow.validation.internal_check import Fault


def long(x: torch.Tensor) -> torch.Tensor:
    """Many operations, of which one is `silu`."""
    return silu((x * 2 + 1).tanh() - x) * x + x.sin()


def reduced(executor):
    """The reduction of all operations of a function."""
    trace = program_of(long, x=numbers()).traces("computation")[0]
    return reduced_program(trace.bound_symbols, inputs_by_name(trace, (numbers(),)), (executor,), Deadline())


def test_reduction_leaves_a_single_operation():
    program = reduced(activating(lambda x: silu(x) + 1e-3))
    assert program is not None
    assert [bsym.symbol.short_name for bsym in program.trace.bound_symbols] == ["silu"]
    assert program.fault.by == "mine"
    assert set(program.values) == {proxy.name for proxy in program.trace.inputs}


def test_a_right_executor():
    assert reduced(activating(silu)) is None


def test_runs_become_longer():
    assert list(first_indices(6)) == [6, 5, 3]


def test_region_is_kept_whole_if_no_operation_defines_the_wrong_tensor(monkeypatch):
    def fault_in_a_written_input(trace, inputs, executors, deadline):
        return Fault(kind="executor", by="mine", trace="computation", line="", result="x", difference="")

    monkeypatch.setattr(reduction, "fault_in", fault_in_a_written_input)
    program = reduced(activating(silu))
    assert program is not None
    assert len(program.trace.bound_symbols) > 1
