"""Loops over a symbolic size that must be unrolled: they match eager, and a recompile reason says why."""

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
from tests.symbolic.loops.test_loops import WIDTH, Program, outcome


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


def asks_by_name(t: torch.Tensor) -> torch.Tensor:
    return t * 2 if getattr(t, "requires_grad") else t * 3 + 1  # noqa: B009


def calls_what_asks_by_name(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = asks_by_name(h) + x[:, i] @ w
    return h


def asks_by_name_itself(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = (h * 2 if getattr(h, "requires_grad") else h * 3 + 1) + x[:, i] @ w  # noqa: B009
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
    *(
        calls_what_asks,
        calls_what_asks_by_name,
        asks_by_name_itself,
        raises_by_value,
        catches,
        stops_in_between,
        continues,
        appends_sometimes,
        warns_in_a_function,
    ),
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
    updates_a_number: "`count` is not a tensor when the loop begins",
    updates_an_alias: "two of its variables share memory, and it writes to one of them",
    appends_what_it_updates: "it appends a tensor to which later iterations write in place",
    counts_calls: "its body changes an object from outside, or prints",
    takes_from_an_iterator: "its body refers to an object of type count, whose state is unknown",
    draws_in_a_function: "its body draws random numbers outside of PyTorch",
    calls_what_asks: "`asks_for_gradients`, which its body calls, uses `requires_grad`",
    calls_what_asks_by_name: "`asks_by_name`, which its body calls, uses `getattr`",
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
    line = first + next(index for index, text in enumerate(lines) if text.lstrip().startswith("for "))
    words = REASONS[program].replace("{line + 1}", str(line + 1))
    place = f"needed at {__file__}:{line}, in {program.__name__}"
    assert reason.startswith(f"args[0].size(1): required s1 == 4, {place}, because this loop is unrolled: {words}")
    assert reason.endswith(", is 5")


@pytest.mark.parametrize("program", [calls_what_asks, calls_what_asks_by_name, asks_by_name_itself])
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_loop_that_asks_for_gradients_matches_eager(program: Program) -> None:
    compiled = thunder.jit(program)
    w = torch.randn(WIDTH, WIDTH, requires_grad=True)
    for length in (4, 6, 2, 3, 1):
        x = torch.randn(2, length, WIDTH)
        torch.testing.assert_close(compiled(x, w), program(x, w))
