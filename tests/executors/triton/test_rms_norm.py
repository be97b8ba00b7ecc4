"""RMSNorm and its derivatives against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tests.executors.triton.closeness import DTYPES, assert_backward, assert_close, assert_forward, draw
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton import rms_norm as kernels
from thunder_executors.triton.rms_norm import (
    add_rms_norm,
    rms_norm,
    rms_norm_input_gradient,
    rms_norm_weight_gradient,
)
from thunder_executors.triton.rows import block_of

SHAPES = ((3, 8), (2, 3, 5), (1, 1), (7,), (1, 4099), (2, 4096), (1, 16400))
EPS = 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = draw(*shape, dtype=dtype), draw(shape[-1], dtype=dtype, seed=1)
    assert_forward(rms_norm, x, weight, EPS)
    assert_forward(rms_norm, x, None, EPS)
    assert_forward(add_rms_norm, x, draw(*shape, dtype=dtype, seed=2), weight, EPS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((3, 8), (2, 3, 5), (1, 2), (7,), (1, 4099), (1, 8200)), ids=str)
def test_backward(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = draw(*shape, dtype=dtype), draw(shape[-1], dtype=dtype, seed=1)
    assert_backward(rms_norm, x, weight, EPS)
    assert_backward(rms_norm, x, None, EPS)
    assert_backward(add_rms_norm, x, draw(*shape, dtype=dtype, seed=2), weight, EPS, outputs=2)


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 16, 17, 40])
def test_a_row_longer_than_the_registers_is_read_in_blocks(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 8 columns in registers, and blocks of at most 16 columns for longer rows."""
    monkeypatch.setattr(kernels, "LONGEST_FORWARD", 8)
    monkeypatch.setattr(kernels, "LONGEST_GRADIENT", 8)
    monkeypatch.setattr(kernels, "block_of", lambda columns, longest=16: block_of(columns, longest))
    x, weight = draw(3, columns), draw(columns, seed=1)
    (launch,) = rms_norm.launches(x, weight, EPS)
    blocks = {"BLOCK": block_of(columns, 8 if columns <= 8 else 16), "IS_ONE_BLOCK": columns <= 8}
    assert launch.constants == blocks
    assert_forward(rms_norm, x, weight, EPS)
    assert_forward(add_rms_norm, x, draw(3, columns, seed=2), weight, EPS)
    assert_backward(add_rms_norm, x, draw(3, columns, seed=2), weight, EPS, outputs=2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_rounds_as_hugging_face_does(dtype: torch.dtype) -> None:
    theirs = LlamaRMSNorm(48, eps=1e-6).to(dtype)
    theirs.weight.data = draw(48, dtype=dtype, seed=1)
    x = draw(5, 48, dtype=dtype)
    ours = rms_norm(x, theirs.weight, 1e-6)
    assert ours.dtype == theirs(x).dtype
    if dtype == torch.float32:
        assert_close(ours, theirs(x).detach())
    else:
        assert torch.equal(ours, theirs(x))


def test_a_weight_of_a_wider_dtype_widens() -> None:
    x, weight = draw(3, 6, dtype=torch.bfloat16), draw(6, seed=1)
    ours = rms_norm(x, weight, EPS)
    assert ours.dtype == torch.float32
    assert_close(ours, kernels.reference(x, weight, EPS), torch.bfloat16)
    assert_backward(rms_norm, x, weight, EPS)


def test_rows_with_gaps_in_memory() -> None:
    storage = draw(4, 3, 40)
    for x in (storage[:, 1, ::2], storage.transpose(0, 2), storage[..., 3:17], storage[::2]):
        weight = draw(x.shape[-1], seed=1)
        assert_forward(rms_norm, x, weight, EPS)
        assert_backward(rms_norm, x, weight, EPS)


def test_a_single_column_has_almost_no_gradient() -> None:
    x = torch.tensor([[2.0], [-3.0]], requires_grad=True)
    rms_norm(x, None, EPS).sum().backward()
    assert x.grad.abs().max() < 1e-5


def test_many_rows_make_several_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "GROUP_ROWS", 16)
    x, dy = draw(37, 5), draw(37, 5, seed=1)
    scales = torch.rsqrt(x.pow(2).mean(-1) + EPS)
    (launch,) = rms_norm_weight_gradient.launches(dy, x, scales, torch.float32)
    assert launch.grid == (1, 3)
    assert_forward(rms_norm_weight_gradient, dy, x, scales, torch.float32)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    x, weight = draw(*shape).requires_grad_(), draw(shape[-1], seed=1).requires_grad_()
    y, total = add_rms_norm(x, x.detach(), weight, EPS)
    assert y.shape == total.shape == shape
    (y.sum() + total.sum()).backward()
    assert x.grad.shape == shape
    assert weight.grad.tolist() == [0.0] * shape[-1]


def test_a_frozen_weight_costs_nothing() -> None:
    x, weight = draw(2, 4), draw(4, seed=1)
    x.requires_grad_()
    rms_norm(x, weight, EPS).sum().backward()
    assert x.grad is not None
    assert weight.grad is None


def test_long_sums_and_great_numbers() -> None:
    x = draw(2, 9000) * 1e15
    assert_forward(rms_norm, x, None, EPS)
    assert_backward(rms_norm, x, None, EPS)


def test_the_gradients_are_operations_with_references() -> None:
    dy, x, weight = draw(3, 6), draw(3, 6, seed=1), draw(6, seed=2)
    assert_forward(rms_norm_input_gradient, dy, draw(3, 6, seed=3), x, weight, EPS)


def test_unsupported_inputs_are_refused() -> None:
    with pytest.raises(KernelRefuses, match="float64"):
        rms_norm(draw(2, 4).double(), None, EPS)
    with pytest.raises(KernelRefuses, match=r"RMSNorm of \(2, 4\) float32 got a weight of \(5,\)"):
        rms_norm(draw(2, 4), draw(5), EPS)
    with pytest.raises(KernelRefuses, match="residual of"):
        add_rms_norm(draw(2, 4), draw(4), None, EPS)
    with pytest.raises(KernelRefuses, match="without dimensions"):
        rms_norm(torch.tensor(1.0), None, EPS)
