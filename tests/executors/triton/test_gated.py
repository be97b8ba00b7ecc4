"""SwiGLU and GeGLU and their derivatives against PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.executors.triton.closeness import DTYPES, assert_backward, assert_close, assert_forward, draw
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.gated import ACTIVATIONS, gated, gated_gradient, geglu, swiglu


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 5), (1,), (2, 1031)], ids=str)
def test_forward_and_backward(shape: tuple[int, ...], activation: str, dtype: torch.dtype) -> None:
    gate, up = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)
    assert_forward(gated, gate, up, activation)
    assert_backward(gated, gate, up, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_far_from_zero(activation: str) -> None:
    gate = torch.tensor([-1e4, -60.0, -9.0, -1e-4, 0.0, 1e-4, 9.0, 60.0, 1e4])
    assert_forward(gated, gate, torch.ones(9), activation)
    assert_backward(gated, gate, torch.ones(9), activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gradients_are_operations_with_references(activation: str) -> None:
    assert_forward(gated_gradient, draw(2, 3), draw(2, 3, seed=1), draw(2, 3, seed=2), activation)


def test_halves_of_one_projection() -> None:
    gate, up = draw(3, 2, 14).chunk(2, dim=-1)
    assert_forward(gated, gate, up)
    assert_backward(gated, gate.transpose(0, 1), up.transpose(0, 1))


def test_the_names_of_the_field() -> None:
    gate, up = draw(2, 5), draw(2, 5, seed=1)
    assert_close(swiglu(gate, up), functional.silu(gate) * up)
    assert_close(geglu(gate, up), functional.gelu(gate) * up)
    assert_close(geglu(gate, up, "tanh"), functional.gelu(gate, approximate="tanh") * up)


def test_mixed_dtypes_widen() -> None:
    gate, up = draw(2, 5, dtype=torch.bfloat16), draw(2, 5, seed=1)
    assert gated(gate, up).dtype == torch.float32
    assert_forward(gated, gate, up)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    gate = draw(*shape).requires_grad_()
    gated(gate, draw(*shape)).sum().backward()
    assert gate.grad.shape == shape


def test_unsupported_inputs_are_refused() -> None:
    with pytest.raises(KernelRefuses, match="cannot be combined by 'relu'"):
        gated(draw(2, 4), draw(2, 4), "relu")
    with pytest.raises(KernelRefuses, match="the same shape"):
        gated(draw(2, 4), draw(4))
