"""Forms of loops over a symbolic size that have one program for all lengths, and forms that must be unrolled."""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import thunder_core as thunder
from tests.symbolic.test_loops import WIDTH, Program, outcome

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


# ---- loops that must be unrolled ----------------------------------------------------------------------------


def appends_what_it_updates(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for i in range(x.shape[1]):
        h += x[:, i]
        outs.append(h[:, 1:])
    return torch.stack(outs, 1), h


def updates_an_alias(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    view, outs = h[:, :2], []
    for i in range(x.shape[1]):
        h += x[:, i]
        outs.append(view * 2)
    return torch.stack(outs, 1), h


def updates_and_assigns(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = alias = torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        h += x[:, i]
        h = h * 2
    return h, alias


def updates_a_slice(x: torch.Tensor, w: torch.Tensor) -> Any:
    x = x * 1
    for i in range(x.shape[1]):
        t = x[:, i]
        t += 1
    return x


def updates_a_view_of_a_slice(x: torch.Tensor, w: torch.Tensor) -> Any:
    x = x * 1
    h = x[:, 0] * 0
    for t in x.unbind(1):
        y = t.view(-1)
        y *= 2
        h = h + y.view(2, WIDTH)
    return x, h


def writes_to_its_own(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = []
    for i in range(x.shape[1]):
        y = x[:, i] @ w
        y[:, 0] = 0
        outs.append(y)
    return torch.stack(outs, 1)


def updates_a_number(x: torch.Tensor, w: torch.Tensor) -> Any:
    count = 0
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        count += 1
        h = h + x[:, i] * count
    return h, count


def updates_what_a_function_reads(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)

    def doubled() -> torch.Tensor:
        return h * 2

    g, total = h, torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        g += x[:, i]
        total = total + doubled()
    return total, g


def updates_by_type(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH, dtype=torch.float64)
    for i in range(x.shape[1]):
        h += x[:, i]
    return h


def updates_integers(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH, dtype=torch.int64)
    for i in range(x.shape[1]):
        h += x[:, i]
    return h


counter = {"calls": 0}
kept: list[int] = []


def counting(t: torch.Tensor) -> torch.Tensor:
    counter["calls"] += 1
    return t * counter["calls"]


def counts_calls(x: torch.Tensor, w: torch.Tensor) -> Any:
    counter["calls"] = 0
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + counting(x[:, i])
    return h, counter["calls"]


def counts_calls_in_a_closure(x: torch.Tensor, w: torch.Tensor) -> Any:
    calls = 0

    def count(t: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return t * calls

    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + count(x[:, i])
    return h, calls


def counts_calls_in_an_object(x: torch.Tensor, w: torch.Tensor) -> Any:
    class Counter:
        calls = 0

    counted, h = Counter(), x[:, 0] * 0

    def count(t: torch.Tensor) -> torch.Tensor:
        counted.calls += 1
        return t * counted.calls

    for i in range(x.shape[1]):
        h = h + count(x[:, i])
    return h, counted.calls


def counts_calls_in_a_class(x: torch.Tensor, w: torch.Tensor) -> Any:
    class Counter:
        calls = 0

    def count(t: torch.Tensor) -> torch.Tensor:
        Counter.calls += 1
        return t * Counter.calls

    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + count(x[:, i])
    return h, Counter.calls


def writes_text(x: torch.Tensor, w: torch.Tensor) -> Any:
    file = io.StringIO()

    def write(t: torch.Tensor) -> torch.Tensor:
        file.write("step ")
        return t * len(file.getvalue())

    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + write(x[:, i])
    return h


def takes_from_an_iterator(x: torch.Tensor, w: torch.Tensor) -> Any:
    numbers = itertools.count(1)

    def numbered(t: torch.Tensor) -> torch.Tensor:
        return t * next(numbers)

    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + numbered(x[:, i])
    return h


def takes_from_a_generator(x: torch.Tensor, w: torch.Tensor) -> Any:
    numbers = (number * 2 for number in range(100))
    draw = functools.partial(next, numbers)
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + x[:, i] * draw()
    return h


def grows_a_list_in_a_function(x: torch.Tensor, w: torch.Tensor) -> Any:
    rows: list[torch.Tensor] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        rows.append(t * 2)
        return t

    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + keep(x[:, i])
    return torch.stack(rows, 1), h


def grows_a_global_list(x: torch.Tensor, w: torch.Tensor) -> Any:
    kept.clear()
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + kept_row(x[:, i])
    return h, list(kept)


def kept_row(t: torch.Tensor) -> torch.Tensor:
    kept.append(t.shape[0])
    return t * len(kept)


def draws_in_a_function(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + drawn(x[:, i])
    return h


def drawn(t: torch.Tensor) -> torch.Tensor:
    return t * random.random()


def draws_of_numpy(x: torch.Tensor, w: torch.Tensor) -> Any:
    np.random.seed(0)
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + drawn_of_numpy(x[:, i])
    return h


def drawn_of_numpy(t: torch.Tensor) -> torch.Tensor:
    return t * float(np.random.rand())


def remembers(t: torch.Tensor, memory: dict[str, Any]) -> torch.Tensor:
    last = memory.get("last")
    memory["last"] = t
    return t if last is None else t + last


def remembers_the_last(x: torch.Tensor, w: torch.Tensor) -> Any:
    memory: dict[str, Any] = {}
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + remembers(x[:, i], memory)
    return h


def asks_for_gradients(t: torch.Tensor) -> torch.Tensor:
    return t * 2 if t.requires_grad else t * 3


def calls_what_asks(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        h = asks_for_gradients(h) + x[:, i]
    return h


def raises_for_large(t: torch.Tensor) -> torch.Tensor:
    if (t > 100).any():
        raise ValueError("too large")
    return t


def raises_by_value(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        h = h + raises_for_large(x[:, i])
    return h


def catches(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, failed = torch.zeros(x.shape[0], WIDTH), 0
    for i in range(x.shape[1]):
        try:
            h = h + x[:, i] @ w[i:]
        except RuntimeError:
            failed += 1
    return h, failed


def stops_in_between(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for t in x.unbind(1):
        h = h + t
        if h.sum() > 3:
            break
    else:
        h = h * 2
    return h


def continues(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i, t in enumerate(x.unbind(1)):
        if i == 1:
            continue
        h = h + t
    return h


def appends_sometimes(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = [x[:, 0]]
    more = []
    for i in range(x.shape[1]):
        if x.shape[0] > 5:
            more.append(x[:, i])
        outs.append(x[:, i])
    return torch.stack(outs, 1), len(more)


def warns(t: torch.Tensor) -> torch.Tensor:
    warnings.warn("a step", stacklevel=1)
    return t


def warns_in_a_function(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(x.shape[1]):
            h = h + warns(x[:, i])
    return h, len(caught)


def of_a_step(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i in range(0, x.shape[1], 2):
        h = h + x[:, i]
    return h


def before_the_first(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i in range(-1, x.shape[1] - 1):
        h = h * 0.5 + x[:, i]
    return h


def after_the_last(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        h = h * 0.5 + x[:, i + 1]
    return h


def has_equal_states(x: torch.Tensor, w: torch.Tensor) -> Any:
    a = b = torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        a, b = differing(a, b), a + x[:, i]
    return a, b


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + 1 if a is b else a + b


def its_number_too(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i, t in enumerate(x.unbind(1)):
        h = h + t * i
    return h


class Averages(nn.Module):
    """A module with a buffer that each call updates."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> Any:
        h = torch.zeros(x.shape[0], WIDTH)
        for t in x.unbind(1):
            h = h + self.norm(t @ w)
        return h, self.norm.running_mean.clone()

    def remember(self, t: torch.Tensor) -> torch.Tensor:
        t = t if self.last is None else t + self.last
        self.last = t
        return t


def updates_buffers(x: torch.Tensor, w: torch.Tensor) -> Any:
    averages = Averages()
    return averages(x, w)


def sets_an_attribute(x: torch.Tensor, w: torch.Tensor) -> Any:
    averages, h = Averages(), x[:, 0] * 0
    for t in x.unbind(1):
        h = h + averages.remember(t)
    return h


UNROLLED: list[Callable[..., Any]] = [
    *(appends_what_it_updates, updates_an_alias, updates_and_assigns, updates_a_slice, updates_a_view_of_a_slice),
    *(updates_a_number, updates_what_a_function_reads, updates_by_type, updates_integers, counts_calls),
    *(counts_calls_in_a_closure, counts_calls_in_an_object, takes_from_an_iterator, takes_from_a_generator),
    *(grows_a_list_in_a_function, grows_a_global_list, draws_in_a_function, draws_of_numpy, remembers_the_last),
    *(calls_what_asks, raises_by_value, catches, stops_in_between, continues, appends_sometimes, warns_in_a_function),
    *(of_a_step, before_the_first, after_the_last, has_equal_states, its_number_too, updates_buffers),
    *(sets_an_attribute, writes_to_its_own, counts_calls_in_a_class, writes_text),
]


@pytest.mark.parametrize("program", UNROLLED, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_unrolled_loop_matches_eager(program: Program) -> None:
    compiled = thunder.jit(program, cache="symbolic values")
    w = torch.randn(WIDTH, WIDTH)
    for length in (4, 6, 2, 3, 1, 0):
        x = torch.randn(2, length, WIDTH)
        expected = outcome(program, x, w)
        if isinstance(expected, type):
            assert outcome(compiled, x, w) is expected
            continue
        torch.testing.assert_close(outcome(compiled, x, w), expected)


REASONS = {
    updates_and_assigns: "line {line + 1} updates `h` in place, which the body also assigns",
    updates_a_number: "`count` is no tensor when the loop begins",
    updates_an_alias: "it writes to memory that it reads by another variable",
    appends_what_it_updates: "it appends a tensor to which later iterations write in place",
    counts_calls: "its body changes an object from outside, or prints",
    takes_from_an_iterator: "its body refers to an object of type count, whose state is unknown",
    draws_in_a_function: "its body draws random numbers outside of PyTorch, or reads a clock",
    calls_what_asks: "`asks_for_gradients`, which its body calls, uses `requires_grad`",
    catches: "line {line + 1} is a statement (Try) other than assignments, `append` and `if`",
    of_a_step: "the step of its range is neither 1 nor -1",
    before_the_first: "it reads or writes a slice before the first or after the last one",
    its_number_too: "line {line + 1} reads the index `i`; read the index only in subscripts such as `x[:, i]`",
    has_equal_states: "two of its variables are one tensor when the loop begins; copy it by `clone()`",
}


@pytest.mark.parametrize("program", REASONS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_recompile_reason_says_why_a_loop_was_unrolled(program: Program) -> None:
    compiled = thunder.jit(program, cache="symbolic values")
    for length in (4, 5):
        compiled(torch.randn(2, length, WIDTH), torch.randn(WIDTH, WIDTH))
    (reason,) = thunder.recompile_reasons(compiled)
    lines, first = inspect.getsourcelines(program)
    line = first + next(place for place, text in enumerate(lines) if text.lstrip().startswith("for "))
    words = REASONS[program].replace("{line + 1}", str(line + 1))
    place = f"needed at {__file__}:{line}, in {program.__name__}"
    assert reason.startswith(f"args[0].size(1): had s1 == 4, {place}, because this loop is unrolled: {words}")
    assert reason.endswith(", is 5")
