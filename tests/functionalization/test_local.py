"""Writes to tensors that the same bound symbols made become out-of-place operators with the same values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.backend.functionalization.local import functionalize_local
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.trace import Trace


def updated(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1)
    y.mul_(x)
    return y


def copied(x: Tensor) -> Tensor:
    y = torch.empty(2, 3)
    y.copy_(x[0])
    return y + 1


def read_between(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    before = y + 0
    y.add_(1)
    return before, y


def given(x: Tensor) -> Tensor:
    return x.add_(1) * 2


def viewed(x: Tensor) -> Tensor:
    y = x * 2
    row = y[0]
    y.add_(1)
    return row + y


def computation(program: Callable[..., Any], x: Tensor) -> Trace:
    compiled = thunder.jit(program)
    compiled(x.clone())
    return thunder.last_traces(compiled)[0]


@pytest.mark.parametrize("program", [updated, copied, read_between])
def test_no_write_is_left_and_values_match_eager(program: Callable[..., Any]) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    trace = computation(program, x)
    bsyms = functionalize_local(trace.bound_symbols, (f"n{number}" for number in itertools.count()))
    assert any(bsym.mutates for bsym in trace.bound_symbols)
    assert not any(bsym.mutates for bsym in bsyms)
    values: dict[str, Any] = {trace.inputs[0].name: x.clone()}
    evaluate(bsyms, values)
    expected = program(x.clone())
    expected = expected if isinstance(expected, tuple) else (expected,)
    for proxy, tensor in zip(trace.output, expected, strict=True):
        assert torch.equal(values[proxy.name], tensor)


@pytest.mark.parametrize("program", [given, viewed])
def test_writes_to_tensors_that_are_visible_outside_stay(program: Callable[..., Any]) -> None:
    trace = computation(program, torch.ones(2, 3))
    bsyms = functionalize_local(trace.bound_symbols, (f"n{number}" for number in itertools.count()))
    assert [bsym.mutates for bsym in bsyms] == [bsym.mutates for bsym in trace.bound_symbols]
