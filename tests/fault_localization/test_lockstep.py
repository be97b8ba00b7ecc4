"""Traces in lockstep are equal if and only if each shared name and each output has the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.claiming.check import RandomStates
from thunder_core.compilation.compiler import last_program
from thunder_core.tracing.ir.symbol import Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization import lockstep
from thunder_core.workflow.fault_localization.lockstep import LineByLine, have_equal_bits

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def first_trace_of(function) -> Trace:
    """The first trace of a function of one tensor."""
    compiled = thunder.jit(function, executors=("torch",))
    compiled(X)
    return last_program(compiled).traces("computation")[0]


def with_operation(trace: Trace, old: str, new) -> Trace:
    """The trace with one operation replaced."""
    bsyms = (
        replace(bsym, symbol=Symbol(new.__name__, new)) if bsym.symbol.short_name == old else bsym
        for bsym in trace.bound_symbols
    )
    return trace.having(tuple(bsyms), made_by="change")


def alike(first: Trace, second: Trace) -> bool:
    """Whether two traces of one tensor compute the same results."""
    inputs = {first.inputs[0].name: X}
    return have_equal_bits(first, second, inputs, RandomStates.now(inputs))


def chain(x):
    """A chain of operations."""
    return torch.cos(torch.sin(x) * 2).sum(-1)


def noisy(x):
    """Random numbers, twice."""
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)


@pytest.mark.parametrize("function", [chain, noisy])
def test_trace_is_equal_to_itself(function):
    trace = first_trace_of(function)
    state = torch.get_rng_state()
    assert alike(trace, trace)
    torch.set_rng_state(state)


def test_other_operation_in_the_middle_is_found():
    assert not alike(first_trace_of(chain), with_operation(first_trace_of(chain), "sin", torch.tan))


def test_last_digit_is_a_difference():
    def nearly(x):
        return torch.sin(x) * (1 + 2**-23)

    assert not alike(first_trace_of(chain), with_operation(first_trace_of(chain), "sin", nearly))


def test_traces_that_write_are_left_to_recordings():
    def writes(x):
        y = x.clone()
        y.mul_(2)
        return y

    assert not alike(first_trace_of(writes), first_trace_of(writes))


def test_values_are_dropped_when_they_were_read_last():
    trace = first_trace_of(chain)
    run = LineByLine(trace, {trace.inputs[0].name: X}, RandomStates.now({}))
    most = max(len(run.values) for _ in run.lines())
    assert most <= 2
    assert torch.equal(next(run.outputs()), chain(X))


def test_large_values_are_weighed_together(monkeypatch):
    trace = first_trace_of(chain)
    assert not lockstep.has_large_values(trace)
    monkeypatch.setattr(lockstep, "LARGE_VALUES", 2 * X.nbytes)
    assert lockstep.has_large_values(trace)
