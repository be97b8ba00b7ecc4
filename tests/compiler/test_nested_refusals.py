"""Calls of a compiled function that cannot be one line of the caller are inlined, made in eager PyTorch, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from tests.compiler.inner_functions import Scaled, X, calls, sines
from thunder_core import functional
from thunder_core.foundation.errors import (
    CannotReplay,
    DataDependent,
    NotDifferentiable,
    RecompileWarning,
    SharpEdgeError,
)
from thunder_core.passes.transforms.autocast import Autocast

W = torch.ones(2, requires_grad=True)


def test_reserved_keyword_argument_is_refused() -> None:
    inner = sines(lambda x, beside: x * beside)
    with pytest.raises(CannotReplay, match="keyword argument `beside`"):
        thunder.jit(lambda x: inner(x, beside=2), data_dependent="error")(X)


def test_branch_after_an_effect_of_an_inner_function_is_left_to_eager() -> None:
    before = list(LOG)
    with pytest.warns(RecompileWarning, match="whose effects cannot be undone, is called before"):
        thunder.jit(branches_behind_an_effect)(X)
    assert len(LOG) > len(before)
    LOG[:] = before


def test_branch_after_writes_of_an_inner_function_is_left_to_eager() -> None:
    norm = nn.BatchNorm1d(2)
    inner = sines(norm)
    outer = thunder.jit(lambda x: x if inner(x).sum() > 0 else -x)
    with pytest.warns(RecompileWarning, match="which runs before it"):
        outer(torch.ones(4, 2))
    assert norm.num_batches_tracked == 1


def test_outside_read_of_an_inner_function_is_refused_by_functional_jit() -> None:
    inner, plain = sines(lambda x: x * W), sines(lambda x: torch.relu(x))
    assert torch.equal(functional.jit(lambda x: plain(x))(X), X)
    with pytest.raises(SharpEdgeError, match=r"reads \S+\.W from outside"):
        functional.jit(lambda x: inner(x))(X)


LOG: list[int] = []


BOX = {"factor": 1.0}


def appended(x: Tensor) -> Tensor:
    LOG.append(1)
    return torch.sin(x)


APPENDED = sines(appended)
BOXED = sines(lambda x: x * BOX["factor"])


WEIGHTED = sines(lambda x: x * W)
PRINTED = sines(lambda x: print("inner"))


def writes_before(x: Tensor) -> Tensor:
    LOG.append(0)
    return APPENDED(x)  # here


def reads_behind(x: Tensor) -> Tensor:
    y = APPENDED(x)  # here
    return y + len(LOG)


def writes_what_it_reads(x: Tensor) -> Tensor:
    BOX["factor"] = 2.0
    return BOXED(x)  # here


def prints_before(x: Tensor) -> Tensor:
    print("outer")
    PRINTED(x)  # here
    return x


def compiles_inside(x: Tensor) -> Tensor:
    inner = sines(lambda y: y * x)
    return inner(x)  # here


def differentiates_itself(x: Tensor) -> None:
    loss = WEIGHTED(x).sum()
    loss.backward()  # here


def gives_what_it_makes(x: Tensor) -> Tensor:
    return sines_of_a_scaled(Scaled(), x)  # here


def branches_behind_an_effect(x: Tensor) -> Tensor:
    y = APPENDED(x)
    return y if x.sum() > 0 else x  # here


sines_of_a_scaled = sines(lambda one, x: x * one.factor)


@pytest.mark.parametrize(
    "program",
    [
        writes_before,
        reads_behind,
        writes_what_it_reads,
        prints_before,
        compiles_inside,
        differentiates_itself,
        gives_what_it_makes,
    ],
)
def test_call_that_cannot_be_a_line_is_refused_with_its_location(program: Callable[..., Any]) -> None:
    before = (list(LOG), dict(BOX))
    with pytest.raises((CannotReplay, NotDifferentiable, DataDependent)) as caught:
        thunder.jit(program, data_dependent="error")(X)
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[caught.value.where.lineno - 1]
    assert line.endswith("# here")
    assert before == (LOG, BOX)


def test_a_refusal_cannot_be_swallowed() -> None:
    def careful(x: Tensor) -> Tensor:
        try:
            return reads_behind(x)
        except Exception:
            return x

    with pytest.raises(CannotReplay):
        thunder.jit(careful, data_dependent="error")(X)


def test_derivative_of_a_compiled_function_keeps_its_options() -> None:
    linear = nn.Linear(2, 2)
    inner = thunder.jit(lambda x: linear(x).float().sum(), transforms=[Autocast()], memory_budget=0.5)
    derivative = thunder.grad(inner)
    derivative(X)
    settings = derivative._thunder.compiler
    assert settings == inner._thunder.compiler
    assert thunder.last_traces(derivative)
    outer = thunder.jit(lambda x: derivative(x) + thunder.grad(inner)(x))
    torch.testing.assert_close(outer(X), derivative(X) * 2)
    assert len(calls(outer)) == 2


def test_the_derivative_of_a_plain_function_is_part_of_the_program() -> None:
    outer = sines(lambda x: thunder.grad(lambda y: (y**3).sum())(x))
    torch.testing.assert_close(outer(X), 3 * X**2)
    assert calls(outer) == []


def test_a_derivative_through_a_call_is_refused_with_the_line() -> None:
    outer = thunder.jit(lambda x: thunder.grad(lambda y: WEIGHTED(y).sum())(x))
    with pytest.raises(NotDifferentiable, match="has its own backward") as caught:
        outer(X)
    assert caught.value.where is not None
