"""Failures during tracing raise eager's exception with eager's message."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_core.frontend.acquire.acquire import acquire
from thunder_core.tracing.capture.fakes import trial
from thunder_core.tracing.ir.program_errors import ProgramRaised


def scatter_into_itself(x: Tensor) -> Tensor:
    return x.scatter_(0, torch.zeros(1, dtype=torch.int64), x)


FAILING: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a result that does not fit": (lambda x, y: x.clone().add_(y), (torch.ones(5, 1), torch.ones(5))),
    "a fake that was resized as it failed": (
        lambda x, y: x.clone().atan2_(y),
        (torch.ones(5, 1, dtype=torch.int64), torch.ones(5, dtype=torch.int64)),
    ),
    "a type that does not fit": (lambda x: x.clone().sin_(), (torch.ones(3, dtype=torch.int64),)),
    "another class of exception": (functional.embedding, (torch.zeros(2, dtype=torch.int64), torch.ones(2, 2, 2))),
    "an intermediate": (lambda x: torch.cat([x * 2, x.sum()]), (torch.ones(3),)),
    "a leaf": (lambda x: x.add_(1), (torch.ones(3, requires_grad=True),)),
    "a write to an expanded tensor": (lambda x: x.clone().expand(2, 3).add_(1), (torch.ones(3),)),
    "a write to memory that is read": (lambda x, y: torch.add(y[:2], x, out=y[1:]), (torch.ones(2), torch.ones(3))),
    "a write to a tensor that is read": (lambda x: scatter_into_itself(x.clone()), (torch.ones(3),)),
    "numbers in the message": (lambda x: x.clone().exponential_(-2.0), (torch.ones(3),)),
}


@pytest.mark.parametrize("name", FAILING)
def test_the_exception_matches_eager(name: str) -> None:
    program, tensors = FAILING[name]
    with pytest.raises(RuntimeError) as eager:
        program(*tensors)
    with warnings.catch_warnings(), pytest.raises(eager.type) as compiled:
        warnings.simplefilter("ignore")  # PyTorch's Python metadata functions warn before they fail
        thunder.jit(program)(*tensors)
    assert type(compiled.value) is eager.type
    assert str(compiled.value) == str(eager.value)


def test_program_can_catch_the_exception() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            return x @ torch.ones(7)
        except RuntimeError as error:
            return x * len(str(error))

    x = torch.ones(3)
    assert torch.equal(thunder.jit(program)(x), program(x))


def test_program_can_catch_the_error_of_overlapping_memory() -> None:
    def program(x: Tensor) -> Any:
        y = x * 1
        try:
            y[1:].add_(y[:-1])
        except RuntimeError as error:
            return y, str(error)
        return y

    found, wanted = thunder.jit(program)(torch.ones(3)), program(torch.ones(3))
    assert repr(found) == repr(wanted)


def test_large_tensors_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    program, inputs = FAILING["another class of exception"]
    with pytest.raises(ProgramRaised) as tried:
        acquire(program, inputs, {})
    assert type(tried.value.error) is RuntimeError, "the class that eager raises"
    monkeypatch.setattr(trial, "MAX_BYTES", 1)
    with pytest.raises(ProgramRaised) as untried:
        acquire(program, inputs, {})
    assert type(untried.value.error) is AssertionError, "the class that functions for metadata raise"
    with pytest.raises(RuntimeError, match="must be 2-D"):  # the call then runs in eager
        thunder.jit(program)(*inputs)
