"""Lines of executors compared with eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from tests.fault_localization.examined import activating, examine_call, numbers, program_of, silu, silu_sum
from thunder_core.workflow.fault_localization.examination import examine

WRONG = {
    "everywhere": lambda x: silu(x) * 1.0001,
    "one element": lambda x: torch.where(torch.arange(8) == 5, 0.0, silu(x)),
    "float16": lambda x: silu(x.half()).float(),
    "nan": lambda x: torch.where(torch.arange(8) == 5, torch.nan, silu(x)),
}


def test_a_right_kernel():
    report = examine_call(silu_sum, (activating(lambda x: x * torch.sigmoid(x)), "torch"), x=numbers())
    assert not report.faults
    assert report.compared == 1
    assert report.worst is not None
    assert report.worst.executor == "mine"


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_kernel_is_named(kind):
    (fault,) = examine_call(silu_sum, (activating(WRONG[kind]), "torch"), x=numbers()).faults
    assert (fault.kind, fault.by, fault.trace) == ("executor", "mine", "computation")
    assert "my_silu(" in fault.line
    assert "examined.py" in fault.source


def test_a_kernel_that_returns_another_dtype():
    (fault,) = examine_call(silu_sum, (activating(lambda x: silu(x).double()), "torch"), x=numbers()).faults
    assert (fault.kind, fault.by) == ("executor", "mine")


def test_time_that_is_over():
    program = program_of(silu_sum, (activating(silu), "torch"), x=numbers())
    report = examine(program, silu_sum, (), {"x": numbers()}, seconds=1e-9)
    assert not report.faults
    assert report.not_compared
