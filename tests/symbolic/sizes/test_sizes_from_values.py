"""Sizes and numbers out of tensors are symbols: one program for all values, with a backward of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder

Program = Callable[[Tensor, Tensor, Tensor], Any]


def pieces(x: Tensor, n: Tensor, m: Tensor) -> Tensor:
    first, second = x[: int(n.sum())].split(n.tolist())
    return first.mean(0) * second.sum(0)


def by_starts(x: Tensor, n: Tensor, m: Tensor) -> Tensor:
    starts = [0, *n.cumsum(0).tolist()]
    return torch.stack([x[start:stop].softmax(0).sum(1).max() for start, stop in itertools.pairwise(starts)])


def experts(x: Tensor, n: Tensor, m: Tensor) -> Tensor:
    weights, chosen = (x @ torch.ones(6, 3).tril()).softmax(-1).topk(2, -1)
    mask, out = functional.one_hot(chosen, 3).permute(2, 1, 0), torch.zeros_like(x)
    for expert in range(3):
        place, token = torch.where(mask[expert])
        out.index_add_(0, token, x[token] * weights[token, place, None] * (expert + 1))
    return out


def counted_experts(x: Tensor, n: Tensor, m: Tensor) -> Tensor:
    chosen = (x.detach()[:, 0] > 0).long()
    counts = torch.bincount(chosen, minlength=2).tolist()
    return torch.cat([part * (1 + index) for index, part in enumerate(x[chosen.argsort(stable=True)].split(counts))])


def written_by_mask(x: Tensor, n: Tensor, m: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[m] = (x * 2)[m]
    return y.cumsum(0)


def of_values(x: Tensor, n: Tensor, m: Tensor) -> Tensor:
    values, places, counts = torch.unique((x[:, 0] * 2).long(), return_inverse=True, return_counts=True)
    return x.new_zeros(values.numel(), 6).index_add(0, places, x) / counts[:, None]


def changed_later(x: Tensor, n: Tensor, m: Tensor) -> Tensor:
    counts = n.clone()
    length = counts[0].item()
    counts.add_(1)
    return x[:length] * counts[0]


PROGRAMS: dict[str, Program] = {
    "a slice": lambda x, n, m: x[: n[0]] * 2,
    "a slice from": lambda x, n, m: x[n[0] :, : n[1]].exp(),
    "a list": lambda x, n, m: sum(x[:k].sum() for k in n.tolist()),
    "the greatest": lambda x, n, m: functional.pad(x, (0, max(n.tolist()))).cos(),
    "pad": lambda x, n, m: functional.pad(x, (0, n[0])) * 3,
    "repeat": lambda x, n, m: x.repeat(n[0] + 1, 1) * 3,
    "repeat_interleave": lambda x, n, m: x[:2].repeat_interleave(n, 0) * 2,
    "one_hot": lambda x, n, m: functional.one_hot(n) * x.sum(),
    "bincount": lambda x, n, m: torch.bincount(n) * x.sum(),
    "rounding": lambda x, n, m: x[: math.ceil(n[0].item() / 2) + 1] * 2,
    "a float": lambda x, n, m: x.new_ones(int(n.float().sum()), 2) * x.mean(),
    "a mask": lambda x, n, m: x[m].sum() / x[~m].numel(),
    "two masks": lambda x, n, m: x[m][:, torch.tensor([True, False, True, True, False, True])].tanh(),
    "a broadcast mask": lambda x, n, m: x.masked_select(m[:, None]) * 2,
    "index_put": lambda x, n, m: x.index_put((m,), x[0]) * 2,
    "a mask of a selection": lambda x, n, m: (x * 1)[x[:, 0] > -9][m].sin(),
    "unique": lambda x, n, m: torch.unique((x.detach()[:, 0] * 2).long()) * x.sum(),
    "unique_consecutive": lambda x, n, m: torch.unique_consecutive(m, return_counts=True)[1] * x.sum(),
    **{one.__name__: one for one in (pieces, by_starts, experts, counted_experts, written_by_mask, of_values)},
    "changed later": changed_later,
}
MASKS = (0b0011011001, 0b0111000101, 0b0110100011, 0b0100111101)
COUNTS = ((3, 4), (5, 2), (2, 6), (4, 3))


def inputs(step: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(step))
    mask = torch.tensor([bool(MASKS[step] >> index & 1) for index in range(10)])
    return x.requires_grad_(), torch.tensor(COUNTS[step]), mask


def outcome(program: Program, step: int) -> tuple[Tensor, Tensor]:
    x, n, m = inputs(step)
    result = program(x, n, m)
    (gradient,) = torch.autograd.grad(result.square().sum(), x)
    return result.detach(), gradient


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_with_its_backward_serves_all_values(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], cache="symbolic values", executors=("torch",))
    for step in range(4):
        torch.testing.assert_close(outcome(compiled, step), outcome(PROGRAMS[name], step))
    assert thunder.cache_misses(compiled) == 1 + (name == "the greatest"), thunder.recompile_reasons(compiled)
    assert thunder.last_backward_reason(compiled) == ""


@pytest.mark.parametrize("name", ["a slice", "repeat_interleave", "a list", "a mask", "two masks", "counted_experts"])
def test_sizes_are_symbols_from_their_second_value_on(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], executors=("torch",))
    for step in range(4):
        torch.testing.assert_close(outcome(compiled, step), outcome(PROGRAMS[name], step))
    assert thunder.cache_misses(compiled) == 2, thunder.recompile_reasons(compiled)


def test_counts_share_what_the_prologue_computes() -> None:
    compiled = thunder.jit(experts, cache="symbolic values", executors=("torch",))
    outcome(compiled, 0)
    prologue = str(thunder.last_prologue_traces(compiled)[-1])
    assert prologue.count(".topk(") == 1
    assert "x.detach()" in prologue


def test_an_index_out_of_range_is_eagers_error() -> None:
    compiled = thunder.jit(lambda x, n, m: x[m][n[0]] * 1, cache="symbolic values", executors=("torch",))
    x, n, m = inputs(0)
    compiled(x, n, m)
    with pytest.raises(IndexError, match="out of"):
        compiled(x, n + 50, m)
