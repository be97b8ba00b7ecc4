"""Rotary embedding and its derivatives against Hugging Face's own, in float64."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tests.executors.triton.closeness import DTYPES, assert_backward, assert_close, assert_forward, draw, gradients
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.rotary import rotary, rotary_gradient


def tables(batches: int, positions: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    turns = torch.arange(positions).double()[:, None] / 100 ** (torch.arange(width // 2) / (width // 2))
    angles = torch.cat((turns, turns), -1).expand(batches, positions, width)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def heads(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A (batch, heads, positions, width) tensor as a projection returns it: positions before heads in memory."""
    batches, count, positions, width = shape
    return draw(batches, positions, count, width, dtype=dtype, seed=seed).transpose(1, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 2, 3, 8), (1, 11, 1, 2, 6), (1, 1, 1, 1, 2), (1, 2, 2, 1, 100)], ids=str)
def test_forward_and_backward(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    batches, q_heads, k_heads, positions, width = shape
    q = heads(batches, q_heads, positions, width, dtype=dtype, seed=0)
    k = heads(batches, k_heads, positions, width, dtype=dtype, seed=1)
    cos, sin = tables(1, positions, width, dtype)
    assert_forward(rotary, q, k, cos, sin)
    assert_backward(rotary, q, k, cos, sin, outputs=2)
    for ours, theirs in zip(rotary(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.transpose(1, 2).is_contiguous()
        assert_close(ours, theirs)


def test_the_gradient_is_the_opposite_rotation() -> None:
    q, k = heads(1, 2, 3, 4, dtype=torch.float32, seed=0), heads(1, 1, 3, 4, dtype=torch.float32, seed=1)
    cos, sin = tables(1, 3, 4, torch.float32)
    back = rotary_gradient(*rotary(q, k, cos, sin), cos, sin)
    assert_close(back[0], q)
    assert_close(back[1], k)
    for actual, wanted in zip(rotary_gradient(q, k, cos, sin), rotary(q, k, cos, -sin), strict=True):
        assert_close(actual, wanted)


def test_each_sequence_may_have_separate_angles() -> None:
    q, k = draw(2, 3, 4, 6), draw(2, 3, 1, 6, seed=1)
    cos, sin = draw(2, 3, 6, seed=2), draw(2, 3, 6, seed=3)
    assert_forward(rotary, q, k, cos, sin, 2)
    assert_backward(rotary, q, k, cos, sin, 2, outputs=2)


def test_halves_that_differ_and_tables_that_are_learned() -> None:
    q, k, cos, sin = draw(2, 1, 3, 4), draw(2, 2, 3, 4, seed=1), draw(1, 3, 4, seed=2), draw(1, 3, 4, seed=3)
    slopes = [draw(2, 1, 3, 4, seed=4), draw(2, 2, 3, 4, seed=5)]
    found = gradients(rotary, (q, k, cos, sin), slopes)
    for actual, wanted in zip(found, gradients(rotary.reference, (q, k, cos, sin), slopes), strict=True):
        assert_close(actual, wanted)


def test_a_part_of_each_head() -> None:
    whole = draw(2, 3, 5, 10)
    q, k = whole[..., :6], whole[..., 3:9]
    cos, sin = tables(2, 5, 6, torch.float32)
    assert_forward(rotary, q, k, cos, sin)
    assert_forward(rotary, whole[..., ::2][..., :4], whole[..., :4], *tables(2, 5, 4, torch.float32))


def test_float32_tables_widen() -> None:
    q = heads(1, 2, 3, 4, dtype=torch.bfloat16, seed=0)
    cos, sin = tables(1, 3, 4, torch.float32)
    ours = rotary(q, q, cos, sin)
    assert [tensor.dtype for tensor in ours] == [torch.float32] * 2
    assert_close(ours[0], apply_rotary_pos_emb(q, q, cos, sin)[0])


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 0, 3, 4), (1, 2, 3, 0)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    q = draw(*shape)
    cos, sin = tables(1, shape[2], shape[3], torch.float32) if shape[3] else (draw(1, 3, 0), draw(1, 3, 0))
    assert [tensor.shape for tensor in rotary(q, q, cos, sin)] == [shape, shape]


def test_unsupported_inputs_are_refused() -> None:
    cos, sin = tables(1, 3, 4, torch.float32)
    with pytest.raises(KernelRefuses, match="even width"):
        rotary(draw(1, 2, 3, 5), draw(1, 2, 3, 5), draw(1, 3, 5), draw(1, 3, 5))
    with pytest.raises(KernelRefuses, match="with the same batch"):
        rotary(draw(1, 2, 3, 4), draw(1, 2, 2, 4), cos, sin)
    with pytest.raises(KernelRefuses, match="with the same batch"):
        rotary(draw(1, 2, 3, 4), draw(1, 2, 3, 4), cos[:, :2], sin)
