"""Forms of loops over a symbolic size that have one program for all lengths, which matches eager."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

import thunder_core as thunder
from tests.symbolic.loops.test_loops import WIDTH, Program, outcome

LENGTHS = (5, 7, 2, 3, 4, 6, 8, 9)
SCALE = 0.5


# ---- ranges and tensors -------------------------------------------------------------------------------------


def stops_early(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for i in range(x.shape[1] - 1):
        h = torch.tanh(x[:, i] @ w + h * x[:, i + 1])
        outs.append(h)
    return torch.stack(outs, 1), h


def starts_late(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = x[:, 0], []
    for i in range(1, x.shape[1]):
        h = h * 0.5 + x[:, i] @ w - x[:, i - 1]
        outs.append(h)
    return torch.stack(outs, 1), h


def starts_late_and_writes(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, written = x[:, 0], torch.zeros_like(x)
    for i in range(1, x.shape[1]):
        h = h * 0.5 + x[:, i] @ w
        written[:, i] = h * 2
    return h, written


def in_reversed_order(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs, written = torch.zeros(x.shape[0], WIDTH), [], torch.zeros_like(x)
    for i in reversed(range(x.shape[1])):
        h = torch.tanh(x[:, i] @ w + h)
        outs.append(h)
        written[:, i] = h
    return torch.stack(outs, 1), h, written


def counts_down(x: torch.Tensor, w: torch.Tensor) -> Any:
    n = x.shape[1]
    h, outs, written = torch.zeros(x.shape[0], WIDTH), [], torch.ones_like(x)
    for i in range(n - 1, -1, -1):
        h = torch.tanh(x[:, i] @ w + h)
        outs.append(h)
        written[:, i] = h
    return torch.cat(outs, 1), h, written


def counts_down_by_one_fewer(x: torch.Tensor, w: torch.Tensor) -> Any:
    written = x * 1
    for i in range(x.shape[1] - 2, -1, -1):
        written[:, i] = x[:, i] * 2 - x[:, i + 1] @ w
    return written


def counts_down_reversed(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for i in reversed(range(x.shape[1] - 1, 0, -1)):
        h = h * 0.5 + x[:, i] @ w
        outs.append(h)
    return torch.stack(outs), h


def over_slices(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for t in x.unbind(1):
        h = torch.tanh(t @ w + h)
        outs.append(h)
    return torch.stack(outs, 1), h


def over_numbered_slices(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs, y = torch.zeros(x.shape[0], WIDTH), [], x.cos()
    for i, t in enumerate(torch.unbind(x * 2, 1)):
        h = t @ w + h * y[:, i]
        outs.append(h)
    return torch.stack(outs, 1), h


def over_first_slices(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = w * 0
    for row in x.transpose(0, 1).unbind():
        row = row @ w
        h = h + row.sum(0)
    return h


def over_reversed_slices(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for t in reversed(x.unbind(1)):
        h = torch.tanh(t @ w + h)
        outs.append(h)
    return torch.stack(outs, 1), h


# ---- statements ---------------------------------------------------------------------------------------------


def updates(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    alias = h
    outs = []
    for i in range(x.shape[1]):
        h += x[:, i] @ w
        h *= 0.5
        outs.append(h * 2)
    return torch.stack(outs, 1), h, alias, alias is h


def updates_its_own(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = []
    for i in range(x.shape[1]):
        y = x[:, i] @ w
        view = y[:, :2]
        y += 1
        outs.append(view)
    return torch.stack(outs, 1)


def unpacks(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b, outs = x[:, 0] * 0, x[:, 0] * 0, []
    for i in range(x.shape[1]):
        y, (a, b) = x[:, i] @ w, (torch.cat([b[:, 1:], a[:, :1]], -1), a + x[:, i])
        outs.append(y + a)
    return torch.stack(outs, 1), a, b


def branches_on_constants(x: torch.Tensor, w: torch.Tensor, bias: Any = None, scale: float = 2.0) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for i in range(x.shape[1]):
        y = x[:, i] @ w
        if bias is not None:
            y = y + bias
        elif scale > 1.0 and h.dim() == 2:
            y = y * scale
        h = torch.tanh(h + y) if x.dim() == 3 else y
        outs.append(h)
    return torch.stack(outs, 1), h


def step(t: torch.Tensor, h: torch.Tensor, *, w: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    if t.shape != h.shape:
        raise ValueError("shapes differ")
    h = torch.tanh(t @ w + h) * scale
    return h * SCALE, h


def calls_a_function(x: torch.Tensor, w: torch.Tensor, **options: Any) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for i in range(x.shape[1]):
        y, h = step(x[:, i], h, w=w, **options)
        outs.append(y)
    return torch.stack(outs, 1), h


def calls_a_local_function(x: torch.Tensor, w: torch.Tensor) -> Any:
    scale = w * 2
    first = functools.partial(step, w=scale)

    def twice(t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return first(t, first(t, h)[1])[1] + scale[0]

    h = torch.zeros(x.shape[0], WIDTH)
    for t in x.unbind(1):
        h = twice(t, h)
    return h


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        return t * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 3


def doubled(t: torch.Tensor) -> torch.Tensor:
    return Doubled.apply(t)  # type: ignore[no-any-return]


def without_gradients(t: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = t.sum(-1, keepdim=True)
    total = t
    for _ in range(2):
        total = total * scale.cos()
        if total.dim() > 2:
            break
    return total


def calls_what_switches_gradients(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for t in x.unbind(1):
        h = without_gradients(t @ w) + h * 0.5
        outs.append(h)
    return torch.stack(outs, 1), h


def calls_its_own_derivative(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for t in x.unbind(1):
        h = torch.tanh(doubled(t @ w) + h)
    return h


def draws_in_a_loop(x: torch.Tensor, w: torch.Tensor) -> Any:
    torch.manual_seed(3)
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for t in x.unbind(1):
        h = torch.tanh(dropout(t @ w) + h) + torch.rand_like(h)
        outs.append(h)
    return torch.stack(outs, 1)


dropout = nn.Dropout(0.5)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.gate: nn.Module | None = None

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> Any:
        h, outs = torch.zeros(x.shape[0], WIDTH), []
        for i in range(x.shape[1]):
            y = self.norm(self.linear(x[:, i] @ w))
            if self.gate is not None:
                y = self.gate(y)
            if self.training:
                y = y * 2
            h = self.cell(y, h)
            outs.append(h)
        return torch.stack(outs, 1), h


layer = Layer()


def calls_modules(x: torch.Tensor, w: torch.Tensor) -> Any:
    return layer(x, w)


ROLLED = [
    *(stops_early, starts_late, in_reversed_order, counts_down, counts_down_by_one_fewer, counts_down_reversed),
    *(over_slices, over_numbered_slices, over_first_slices, updates, updates_its_own, unpacks, branches_on_constants),
    *(calls_a_function, calls_a_local_function, calls_modules, over_reversed_slices, starts_late_and_writes),
    *(calls_what_switches_gradients, calls_its_own_derivative, draws_in_a_loop),
]
# PyTorch asks whether a part of a tensor that is written to has one slice.
FROM_THREE_ON = (counts_down_by_one_fewer, starts_late_and_writes)


@pytest.mark.parametrize("program", ROLLED, ids=lambda program: program.__name__)
@pytest.mark.parametrize("gradients", [True, False])
def test_loop_has_one_program_that_matches_eager(program: Program, gradients: bool) -> None:
    compiled = thunder.jit(program, cache="symbolic values")
    for length in (length for length in LENGTHS if length > 2 or program not in FROM_THREE_ON):
        x, w = torch.randn(2, length, WIDTH), torch.randn(WIDTH, WIDTH)
        if gradients:
            torch.testing.assert_close(outcome(compiled, x, w), outcome(program, x, w))
        else:
            with torch.no_grad():
                torch.testing.assert_close(compiled(x.clone(), w), program(x.clone(), w))
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)
