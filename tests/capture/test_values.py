"""Values that a program reads match eager, and reading many values runs each line once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.tracing.capture import values
from thunder_core.tracing.capture.torch_facts import slices
from thunder_core.tracing.library.objects import UnexpectedValue, expect_layout

X = torch.tensor([1.0, -2.0, 3.0])


def made_early_and_asked_late(x: Tensor, count: int) -> Tensor:
    for number in range(count):
        x = x.cos() * number
    made = [x * number for number in range(count)]
    for number, result in enumerate(made):
        changed = result + 1
        changed.mul_(2)
        x = x + number if changed.sum() > 5 else x - number
    return x


def asked_with_and_without_writes(x: Tensor, count: int) -> Tensor:
    y = x
    for number in range(count):
        x, y = x.sin() + number, y.cos() + number
        y.mul_(2)
        x = x + 1 if x.sum() > 2 else x - 1
        y = y + 1 if y.sum() > 2 else y - 1
    return x + y


def asked_while_one_grows(x: Tensor, count: int) -> Tensor:
    total = torch.zeros(3)
    for number in range(count):
        total += x * number
        if total.sum() > 20:
            total -= 1
    return total


def asked_while_drawing(x: Tensor, count: int) -> Tensor:
    torch.manual_seed(0)
    for _ in range(count):
        x = x + torch.rand(3)
        if x.sum() > 4:
            x = x - 2
    return x


def asked_beneath_autocast(x: Tensor, count: int) -> Tensor:
    for number in range(count):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = (x * number)[None] @ x[:, None]
        x = x + 0.5 if y.sum() > 14 else x * 0.5
    return x


PROGRAMS = [
    made_early_and_asked_late,
    asked_with_and_without_writes,
    asked_while_one_grows,
    asked_while_drawing,
    asked_beneath_autocast,
]
Program = Callable[[Tensor, int], Tensor]


class Count:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.calls += 1
        return self.function(*args, **kwargs)


def work_of(program: Program, count: int) -> dict[str, int]:
    """Count the lines that are run, and the lines that are found to be needed, while the program is traced."""
    owners = {"evaluate": values, "heappush": slices}
    counted = {name: Count(getattr(owner, name)) for name, owner in owners.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, owner in owners.items():
            patch.setattr(owner, name, counted[name])
        assert torch.equal(thunder.jit(program)(X, count), program(X, count))
    return {name: function.calls for name, function in counted.items()}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_cost_of_many_values_is_linear_in_the_lines(program: Program) -> None:
    """Twice the lines and twice the values take twice the work: no line is run again."""
    few, many = work_of(program, 6), work_of(program, 12)
    assert all(0 < many[name] < 2.5 * few[name] for name in few), (few, many)


def overwritten_behind(x: Tensor) -> Tensor:
    y = x * 2
    early = y + 1
    y.mul_(-1)
    if y.sum() < 0:
        x = x + 1
    return x * 3 if early.sum() > 6 else x  # the operand of `early` has been written to since


def written_in_the_input(x: Tensor) -> Tensor:
    x = x.clone()
    row = x[1:]
    before = row.sum()
    x.add_(10)
    if x.sum() > 0:
        row.mul_(2)
    return row * 2 if before + row.sum() > 45 else row


def turned_in_place(x: Tensor) -> Tensor:
    y = torch.stack([x, x + 1])
    first = y.sum(0)
    y.t_()
    y.add_(1)
    if y.sum(0)[0] > 3:
        x = x + 1
    return first if first.numel() == 3 and first.sum() > 6 else x


def made_beneath_autocast(x: Tensor) -> Tensor:
    x = x * (1 + 2**-10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        one, other = x[None, :1] @ X[:1, None], x[None, :1] @ X[:1, None] * 2
    if one.sum() > 0.5:
        x = x + 1
    return x if other.sum() > 2 else -x  # values of more than 2 in float32


@pytest.mark.parametrize("program", [overwritten_behind, written_in_the_input, turned_in_place, made_beneath_autocast])
def test_values_are_read_at_their_line(program: Callable[[Tensor], Tensor]) -> None:
    compiled = thunder.jit(program)
    for x in (X, -X, X + 1):
        assert torch.equal(compiled(x), program(x))


def test_message_of_an_unexpected_layout_names_the_strides_found() -> None:
    with pytest.raises(UnexpectedValue) as raised:
        expect_layout(torch.ones(2, 2).t(), (2, 2), (2, 1))
    assert raised.value.expected == "of shape (2, 2) and strides (2, 1)"
    assert raised.value.actual == "of shape (2, 2) and strides (1, 2)"
