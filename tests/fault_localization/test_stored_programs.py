"""The comparison of a stored program's tensors with the tensors of the same program compiled now."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from thunder_core.workflow.fault_localization.stored_programs import NamedTensor, first_wrong_binding

SOURCE = "def computation(x):\n    t0 = torch.sin(x)  # layers.0\n    return (t0,)\n"
BOUND = NamedTensor(2, "t0", torch.ones(2))
RETURNED = NamedTensor(3, "result 0", torch.ones(2))


@pytest.fixture
def trace():
    compiled = thunder.jit(torch.sin)
    compiled(torch.ones(2))
    return thunder.last_traces(compiled)[-1]


@pytest.mark.parametrize(
    ("stored", "counts", "line"),
    [
        ([], "0", "return (t0,)"),
        ([BOUND], "0", "t0 = torch.sin(x)"),
        ([BOUND, RETURNED, RETURNED], "2", "return (t0,)"),
    ],
)
def test_another_number_of_results_is_a_fault(trace, stored, counts, line):
    fault = first_wrong_binding(stored, [BOUND, RETURNED], SOURCE, trace)
    assert fault.line == line
    assert fault.difference == f"the stored function returns {counts} tensors, and the program compiled now returns 1"


def test_equal_bindings_are_no_fault(trace):
    assert first_wrong_binding([BOUND, RETURNED], [BOUND, RETURNED], SOURCE, trace) is None
