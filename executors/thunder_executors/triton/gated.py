"""SwiGLU and GeGLU: an activation of the gate, multiplied by up; Shazeer, 2020 (arXiv:2002.05202).

`silu(x) = x * s(x)` with the logistic function s. `gelu(x) = x * Phi(x)` with the normal distribution function Phi;
Hendrycks and Gimpel, 2016 (arXiv:1606.08415). Its approximation `0.5 * x * (1 + tanh(u))` with `u = sqrt(2 / pi) * (x +
0.044715 * x^3)` is computed as `x * s(2 * u)`, which is equal. Each derivative is `w + x * w'` for the factor w.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.launch import is_dropping
from thunder_executors.triton.operations import operator
from thunder_executors.triton.rows import as_rows, check_floats, describe, launch_over_columns, rows_of, warps_of

LONGEST = 1024

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@triton.jit
def factor_and_slope(x: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """Return the factor w of the activation x * w(x), and its derivative."""
    if ACTIVATION == "silu":
        factor = tl.sigmoid(x)
        slope = factor * (1.0 - factor)
    elif ACTIVATION == "gelu":
        factor = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        slope = tl.exp(-0.5 * x * x) * 0.3989422804014327
    else:
        factor = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        slope = factor * (1.0 - factor) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    return factor, slope


@triton.jit
def gated_forward_kernel(
    gate: tl.tensor,
    up: tl.tensor,
    y: tl.tensor,
    gate_stride: tl.int64,
    up_stride: tl.int64,
    columns: tl.int32,
    blocks: tl.int32,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Process a block of a row: y = activation(gate) * up."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(gate + row * gate_stride + column, inside, 0.0).to(tl.float32)
    up_value = tl.load(up + row * up_stride + column, inside, 0.0).to(tl.float32)
    factor, _ = factor_and_slope(x, ACTIVATION)
    tl.store(y + row * columns + column, (x * factor * up_value).to(y.dtype.element_ty), inside)


@triton.jit
def gated_gradient_kernel(
    dy: tl.tensor,
    gate: tl.tensor,
    up: tl.tensor,
    dgate: tl.tensor,
    dup: tl.tensor,
    dy_stride: tl.int64,
    gate_stride: tl.int64,
    up_stride: tl.int64,
    columns: tl.int32,
    blocks: tl.int32,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Process a block of a row: dgate = dy * up * activation'(gate), dup = dy * activation(gate)."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    incoming = tl.load(dy + row * dy_stride + column, inside, 0.0).to(tl.float32)
    x = tl.load(gate + row * gate_stride + column, inside, 0.0).to(tl.float32)
    up_value = tl.load(up + row * up_stride + column, inside, 0.0).to(tl.float32)
    factor, slope = factor_and_slope(x, ACTIVATION)
    gate_gradient = incoming * up_value * (factor + x * slope)
    tl.store(dgate + row * columns + column, gate_gradient.to(dgate.dtype.element_ty), inside)
    tl.store(dup + row * columns + column, (incoming * x * factor).to(dup.dtype.element_ty), inside)


def reference(gate: torch.Tensor, up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """Return the activation of the gate, multiplied by up."""
    return ACTIVATIONS[activation](gate) * up


def gradient_reference(
    dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str = "silu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return PyTorch's own derivative of the reference."""
    inputs = gate.detach().requires_grad_(), up.detach().requires_grad_()
    with torch.enable_grad():
        dgate, dup = torch.autograd.grad(reference(*inputs, activation), inputs, dy)
    return dgate, dup


def _check(gate: torch.Tensor, up: torch.Tensor, activation: str) -> None:
    check_floats(gate=gate, up=up)
    rows_of(gate)
    if gate.shape != up.shape or activation not in ACTIVATIONS:
        raise KernelRefuses(
            f"a gate of {describe(gate)} and up of {describe(up)} cannot be combined by {activation!r}",
            fix=f"pass both in the same shape, and one of the activations {', '.join(ACTIVATIONS)}",
        )


@operator(reference)
def gated(gate: torch.Tensor, up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """Return `activation(gate) * up`, contiguous; the activation is `silu`, `gelu` or `gelu_tanh`."""
    _check(gate, up, activation)
    y = torch.empty(gate.shape, dtype=torch.promote_types(gate.dtype, up.dtype), device=gate.device)
    if not is_dropping():
        _launch(gated_forward_kernel, activation, gate=as_rows(gate), up=as_rows(up), y=y)
    return y


@operator(gradient_reference)
def gated_gradient(
    dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str = "silu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of gate and up."""
    _check(gate, up, activation)
    dgate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    dup = torch.empty(up.shape, dtype=up.dtype, device=up.device)
    if not is_dropping():
        rows = {"dy": as_rows(dy), "gate": as_rows(gate), "up": as_rows(up)}
        _launch(gated_gradient_kernel, activation, **rows, dgate=dgate, dup=dup)
    return dgate, dup


def _launch(kernel: Any, activation: str, **tensors: torch.Tensor) -> None:
    rows, columns = tensors["gate"].shape
    launch_over_columns(
        kernel, rows, columns, LONGEST, lambda block: warps_of(block * 2), **tensors, ACTIVATION=activation
    )


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`."""
    result: torch.Tensor = gated(gate, up, "silu")
    return result


def geglu(gate: torch.Tensor, up: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return `gelu(gate, approximate) * up`."""
    result: torch.Tensor = gated(gate, up, {"none": "gelu", "tanh": "gelu_tanh"}[approximate])
    return result


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    gate, up, ctx.activation = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return *gated_gradient(dy, *ctx.saved_tensors, ctx.activation), None


gated.differentiate(_save, _backward)
