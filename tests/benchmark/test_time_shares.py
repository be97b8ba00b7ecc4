"""The time of a computation by executor."""

from __future__ import annotations

import time

import pytest
import torch

import thunder_core as thunder
from thunder_core.workflow.benchmark.time_shares import TimedTrace, time_shares


def test_the_slow_executor_has_most_of_the_time():
    slow = thunder.OperatorExecutor("slow")

    @slow.implements(torch.tanh)
    def slow_tanh(x):
        time.sleep(0.02)
        return x.tanh()

    compiled = thunder.jit(lambda x: torch.tanh(x).exp() + 1, executors=(slow, "torch"))
    x = torch.randn(4)
    compiled(x)
    (shares,) = time_shares(TimedTrace(thunder.last_traces(compiled)[-1], lambda: [x]), device=x.device)
    assert set(shares) == {"slow", "torch"}
    assert shares["slow"] > 0.9
    assert sum(shares.values()) == pytest.approx(1.0)


def test_an_executor_without_work_has_no_share():
    compiled = thunder.jit(lambda x: x)
    x = torch.randn(4)
    compiled(x)
    trace = thunder.last_traces(compiled)[-1]
    assert time_shares(TimedTrace(trace, lambda: [x for _ in trace.inputs]), device=x.device) == [{}]
