"""The kernels that an artifact stores: machine code that serves all calls of a program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import thunder_core as thunder
from tests.executors.triton.closeness import draw
from thunder_core.compilation.compiler.last_call import last_program
from thunder_executors.triton import launch as launching
from thunder_executors.triton.ahead import specializations_of
from thunder_executors.triton.launch import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="runs in Triton's interpreter")
HEADS, HEAD = 4, 16


def rotated(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys after the rotary embedding."""
    return apply_rotary_pos_emb(q, q[:, :2], cos, sin)


def inputs(length: int) -> tuple[torch.Tensor, ...]:
    tables = draw(1, length, HEAD // 2).repeat(1, 1, 2)
    return draw(1, HEADS, length, HEAD), tables.cos(), tables.sin()


def test_kernels_of_a_program_for_all_lengths_serve_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of positions is a multiple of 16 only for some lengths."""
    names = {f"{name}.size({dim})": (2, 4096) for name, dim in (("q", 2), ("cos", 1), ("sin", 1))}
    compiled = thunder.jit(rotated, executors=("triton", "torch"), symbolic=names)
    compiled(*inputs(64))
    trace = last_program(compiled).last("computation")
    stored = specializations_of(trace, "triton")
    assert [specialization.kernel.partition(":")[2] for specialization in stored] == ["rotary_kernel"] * 2
    assert set(stored[1].divisible) < set(stored[0].divisible)
    launched: list[Any] = []
    monkeypatch.setattr(launching, "STORED_KERNELS", dict.fromkeys(stored, launched.append))
    monkeypatch.setattr(launching, "compile_now", pytest.fail)
    for length in (64, 128, 50, 33, 1000):
        compiled(*inputs(length))
    assert len(launched) == 5
    assert thunder.cache_misses(compiled) == 1


def test_constant_sizes_need_one_kernel() -> None:
    compiled = thunder.jit(rotated, executors=("triton", "torch"))
    compiled(*inputs(64))
    assert len(specializations_of(last_program(compiled).last("computation"), "triton")) == 1
