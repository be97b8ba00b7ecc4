"""Functions that are generated from traces, and that run other generated functions while traces are rewritten."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.runtime.generate import FIRST_REWRITTEN_CALL, _traces, rewriting_traces
from thunder_core.tracing.ir.trace import Trace


def test_a_trace_is_rewritten_once_and_only_where_its_function_is_called() -> None:
    called, other = thunder.jit(lambda x: x.sin()), thunder.jit(lambda x: x.cos())
    x, made = torch.ones(3), []
    called(x)
    other(x)

    def rewriting(trace: Trace) -> Trace:
        made.append(trace)
        return trace.having(trace.bound_symbols[:-1], made_by="leave the last bound symbol out")

    with rewriting_traces(rewriting):
        for _ in range(2):
            with pytest.raises(NameError, match="t0"):
                called(x)
        with pytest.raises(NameError, match="t0"):
            thunder.jit(lambda x: x.tan())(x)  # generated in the meantime
    assert [trace.bound_symbols[0].symbol.name for trace in made] == ["torch.Tensor.sin", "torch.Tensor.tan"]
    torch.testing.assert_close(called(x), x.sin())
    torch.testing.assert_close(other(x), x.cos())
    assert not [function for function in list(_traces) if FIRST_REWRITTEN_CALL in function.__globals__]
