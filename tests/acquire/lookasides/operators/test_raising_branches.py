"""Branches on tensor values that only raise an error are guarded even if reading values is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent

Program = Callable[[Tensor], Any]


def above(x: Tensor, most: float | None = 3) -> Tensor:
    if most is not None and x.max() >= most:
        raise ValueError(f"{x.max()} is too large")
    return x * 2


def of_an_item(x: Tensor) -> Tensor:
    if not x.sum().item() > 0 or x.min() < -3:
        raise RuntimeError("not positive: " + str(x))
    return x.exp()


def raises_at_the_end(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + 1
    raise ValueError("not positive")


def asserting() -> Program:
    """Return a program with an assertion, which pytest has not rewritten."""
    names: dict[str, Any] = {}
    text = "def asserts(x):\n    assert (x > 0).all(), 'not positive'\n    return x.log()\n"
    exec(compile(text, "<asserts>", "exec", dont_inherit=True), names)
    made: Program = names["asserts"]
    return made


CHECKS: tuple[Program, ...] = (above, asserting(), of_an_item, raises_at_the_end)


@pytest.mark.parametrize("program", CHECKS)
def test_check_is_guarded_and_raises_as_in_eager(program: Program) -> None:
    compiled = thunder.jit(program, data_dependent="error")
    for x in (torch.ones(2), torch.full((2,), 2.0), torch.tensor([1.0, 2.5])):
        assert torch.equal(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == 1
    x = torch.tensor([4.0, -5.0])
    with pytest.raises((ValueError, AssertionError, RuntimeError)) as expected:
        program(x)
    with pytest.raises(type(expected.value)) as raised:
        compiled(x)
    assert str(raised.value) == str(expected.value)
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))


def caught(x: Tensor) -> Tensor:
    try:
        return above(x)
    except ValueError:
        return -x


def does_more(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x * 2
        if x.dim() == 3:
            raise ValueError
    return x


def branches_in_the_error(x: Tensor) -> Tensor:
    if x.sum() > 0:
        raise ValueError("positive" if x.max() > 0 else "negative")
    return x


@pytest.mark.parametrize("program", [caught, does_more, branches_in_the_error])
def test_branch_that_does_more_than_raise_is_refused(program: Program) -> None:
    with pytest.raises(DataDependent):
        thunder.jit(program, data_dependent="error")(torch.ones(2))


def spoken(logits: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    mask = labels >= 0
    return torch.nn.functional.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1), labels.masked_select(mask), lengths, mask.sum(-1), zero_infinity=True
    )


def test_ctc_loss_needs_no_values_for_targets_of_any_length() -> None:
    compiled = thunder.jit(spoken, data_dependent="error")
    for length in (6, 5, 3):
        labels = torch.randint(1, 9, (2, 6))
        labels[1, length:] = -100
        values = torch.randn(2, 20, 9)
        gradients = []
        for function in (compiled, spoken):
            logits = values.clone().requires_grad_()
            loss = function(logits, labels, torch.tensor([20, 18]))
            loss.backward()
            gradients.append((loss.detach(), logits.grad))
        torch.testing.assert_close(*gradients)
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_backward_reason(compiled) == ""


def reads_after_a_size(x: Tensor) -> Tensor:
    x = x[x > 0]
    return x if x.sum() > 3 else -x


def test_refusal_names_the_value_that_no_size_determines() -> None:
    with pytest.raises(DataDependent) as refused:
        thunder.jit(reads_after_a_size, data_dependent="error")(torch.ones(4))
    assert refused.value.where is not None
    assert refused.value.where.lineno == reads_after_a_size.__code__.co_firstlineno + 2
