"""Loops over a symbolic number of iterations have one program for all lengths, or are unrolled; both match eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from tests.symbolic.random_loops import differences, loop

Program = Callable[[torch.Tensor, torch.Tensor], Any]
LENGTHS = (5, 7, 2, 3, 9)
WIDTH = 4


def collects(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    outs = []
    for i in range(x.shape[1]):
        h = torch.tanh(x[:, i] @ w + h)
        outs.append(h)
    return torch.stack(outs, 1), h


def collects_parts(x: torch.Tensor, w: torch.Tensor) -> Any:
    first, second, h = [], [], w[0] * 0
    _, length, _ = x.shape
    for i in range(length):
        y = (x[:, i, :2].unsqueeze(-1) * 2)[:, :, 0]
        h = h + x[0, i % 1 if False else 0] if False else h * 0.5 + x[:, i].sum(0)
        first.append(y)
        second.append(h)
    return torch.stack(first, dim=-1), torch.stack(second)


def joins(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    outs = []
    for i in range(x.shape[1]):
        h = h * 0.5 + x[:, i, :] @ w
        outs.append(h[:, 1:])
    return torch.cat(outs, dim=-1)


def scans_rows(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, rows, outs = x[:, 0] * 0, x.transpose(0, 1), []
    for t in range(rows.size(0)):
        a, b = rows[t].float(), h.cos()
        h = a * b
        outs.append(h)
    return torch.stack(outs), h


def writes(x: torch.Tensor, w: torch.Tensor) -> Any:
    output, h = torch.zeros_like(x), torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        h = h * 0.5 + x[:, i] @ w
        output[:, i] = (h * 2).to(output.dtype)
    return output, h


def only_maps(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = []
    for i in range(x.shape[1]):
        outs.append((x[:, i] @ w).relu())  # noqa: PERF401
    return torch.stack(outs, 1)


def only_carries(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        h = (h + x[:, i]).sin()
    return h


def two_loops(x: torch.Tensor, w: torch.Tensor) -> Any:
    y, h = collects(x, w)
    return writes(y, w)[0] + h[:, None]


ROLLED = [collects, joins, scans_rows, writes, only_maps, only_carries, two_loops]


def modified_after_append(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = []
    for i in range(x.shape[1]):
        y = x[:, i] * 2
        outs.append(y)
        y = y.add_(1)
    return torch.stack(outs, 1)


def modified_in_place(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs, h = [], torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        outs.append(h)
        h = h.add_(x[:, i].detach())
    return torch.stack(outs, 1) * x


def shifted(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs, h = [], torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        outs.append(h)
        h = x[:, i]
    return torch.stack(outs, 1), h


def rereads_its_rows(x: torch.Tensor, w: torch.Tensor) -> Any:
    output = x * 1
    for i in range(x.shape[1]):
        y = output[:, 0] + x[:, i]
        output[:, i] = y
    return output


def writes_to_an_alias(x: torch.Tensor, w: torch.Tensor) -> Any:
    output = x * 1
    alias = output.roll(0) if False else output.view(-1)
    for i in range(x.shape[1]):
        output[:, i] = x[:, i] + alias[:WIDTH]
    return output


def branches_on_the_index(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs, h = [], torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        h = h + x[:, i] if i % 2 else h - x[:, i]
        outs.append(h)
    return torch.stack(outs, 1)


def differs_first(x: torch.Tensor, w: torch.Tensor) -> Any:
    h: Any = None
    for i in range(x.shape[1]):
        if i == 0:
            h = x[:, i]
            continue
        h = h * x[:, i]
        if i > 4:
            break
    return h


def uses_the_index(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = []
    for i in range(x.shape[1]):
        outs.append(x[:, i] * i)
    return torch.stack(outs, 1), i


def reads_a_last_value(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = []
    for i in range(x.shape[1]):
        last = x[:, i] * 2
        outs.append(last)
    return torch.stack(outs, 1), last


def looks_back(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = []
    for i in range(x.shape[1]):
        y = x[:, i - 1] + x[:, i]
        outs.append(y)
    return torch.stack(outs, 1), len(outs)


def grows(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x[:, :1]
    for i in range(x.shape[1]):
        h = torch.cat([h, x[:, i, None]], 1)
    return h


def changes_dtype(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH, dtype=torch.int64)
    for i in range(x.shape[1]):
        h = h + x[:, i]
    return h


def counts(x: torch.Tensor, w: torch.Tensor) -> Any:
    numbers = iter([float(index) for index in range(100)])
    outs = []
    for i in range(x.shape[1]):
        outs.append(x[:, i] * next(numbers))  # noqa: PERF401
    return torch.stack(outs, 1)


def draws_numbers(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = []
    for i in range(x.shape[1]):
        outs.append(x[:, i] * random.random())  # noqa: PERF401
    return torch.stack(outs, 1)


def fills_a_dict(x: torch.Tensor, w: torch.Tensor) -> Any:
    found = {}
    for i in range(x.shape[1]):
        found[i] = x[:, i] * 2
    return found


def nested(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = []
    for b in range(x.shape[0]):
        h = torch.zeros(WIDTH)
        for i in range(x.shape[1]):
            h = torch.tanh(x[b][i] + h)
            outs.append(h)
    return torch.stack(outs)


def reversed_and_paired(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for i in reversed(range(x.shape[1])):
        h = h + x[:, i]
        outs.append(h)
    for index, (row, out) in enumerate(zip(x.unbind(1), list(outs), strict=True)):
        h = h + row * out * index
    return torch.stack(outs, 1), h


def by_the_value(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        h = h + x[:, i].new_full((1,), x[:, i].max().item())
    return h


def fewer_iterations(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = torch.zeros(x.shape[0], WIDTH), []
    for i in range(x.shape[1] - 1):
        h = h + x[:, i]
        outs.append(h)
    return torch.stack(outs, 1) if outs else h


def has_a_shared_list(x: torch.Tensor, w: torch.Tensor) -> Any:
    outs = kept = []
    for i in range(x.shape[1]):
        outs.append(x[:, i])  # noqa: PERF401
    return torch.stack(outs, 1), len(kept)


total: Any = None


def writes_a_global(x: torch.Tensor, w: torch.Tensor) -> Any:
    global total
    h = x[:, 0] * 0
    for i in range(x.shape[1]):
        h = h + x[:, i]
        total = h * 1
    return h, total


def as_is(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b = x[:, 0] * 1, x[:, 0] * 2
    for i in range(x.shape[1]):
        a, b = b, a + x[:, i]
    return a, b


UNROLLED = [
    *(modified_after_append, modified_in_place, shifted, rereads_its_rows, writes_to_an_alias, branches_on_the_index),
    *(differs_first, uses_the_index, reads_a_last_value, looks_back, grows, changes_dtype, counts, fills_a_dict),
    *(nested, reversed_and_paired, by_the_value, fewer_iterations, has_a_shared_list, as_is, draws_numbers),
    writes_a_global,
]


def outcome(function: Program, x: torch.Tensor, w: torch.Tensor) -> Any:
    """Return the results of a program and the gradients of its inputs, or the type of its error."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    random.seed(0)
    try:
        results = function(x, w)
    except (RuntimeError, IndexError, ValueError, UnboundLocalError) as error:
        return type(error)
    ends = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if ends:
        sum(((end * end).sum() for end in ends), start=torch.zeros(())).backward()
    return tree_leaves(results), x.grad, w.grad


@pytest.mark.parametrize("program", [*ROLLED, *UNROLLED], ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_loops_match_eager_at_all_lengths(program: Program) -> None:
    compiled = thunder.jit(program, cache="symbolic values")
    w = torch.randn(WIDTH, WIDTH)
    for length in (*LENGTHS, 1, 0):
        x = torch.randn(2, length, WIDTH)
        expected = outcome(program, x, w)
        if isinstance(expected, type):
            assert outcome(compiled, x, w) is expected
            continue
        torch.testing.assert_close(outcome(compiled, x, w), expected)
        if program is not draws_numbers:
            with torch.no_grad():
                torch.testing.assert_close(compiled(x.clone(), w), program(x.clone(), w))


@pytest.mark.parametrize("program", ROLLED, ids=lambda program: program.__name__)
def test_loops_have_one_program_for_all_lengths(program: Program) -> None:
    compiled = thunder.jit(program, cache="symbolic values")
    for length in LENGTHS:
        compiled(torch.randn(2, length, WIDTH), torch.randn(WIDTH, WIDTH, requires_grad=True))
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


@settings(max_examples=max(20, settings.default.max_examples // 8), database=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.filterwarnings("ignore")
def test_random_loops_match_eager(seed: int) -> None:
    tried = loop(random.Random(seed))
    message, _ = differences(tried)
    assert not message, f"{message}\n{tried.dtype}, gradients: {tried.grad}{tried.text}"


@pytest.mark.filterwarnings("ignore")
def test_most_random_loops_are_recorded() -> None:
    programs = [differences(loop(random.Random(seed)))[1] for seed in range(6)]
    assert sum(count < len(LENGTHS) for count in programs) > len(programs) / 2, programs


def has_constant_weights(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], WIDTH)
    for i in range(x.shape[1]):
        h = torch.tanh(h + x[:, i] @ w.detach())
    return h


def loses_its_start(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b = w[:2] * 2, x.mean(1)
    for i in range(x.shape[1]):
        a, b = b * 2, x[:, i] * 2
    return a, b


@pytest.mark.parametrize(("program", "count"), [(has_constant_weights, 1), (loses_its_start, 4)])
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_inputs_that_no_gradient_reaches_have_none(program: Program, count: int) -> None:
    compiled = thunder.jit(program, cache="symbolic values")
    for length in LENGTHS[:4]:
        x, w = torch.randn(2, length, WIDTH), torch.randn(WIDTH, WIDTH)
        found, expected = outcome(compiled, x, w), outcome(program, x, w)
        assert expected[2] is None
        torch.testing.assert_close(found, expected)
    assert thunder.cache_misses(compiled) == count, thunder.recompile_reasons(compiled)
