"""Operations with numbers that change from call to call: the numbers become tensors of one element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves

COMPUTE_DTYPES = {torch.bfloat16: torch.float32, torch.float16: torch.float32}  # PyTorch's compute dtypes
Formula = Callable[..., Tensor]


def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """Interpolate from the nearer end, so that a weight of 1 gives the other end exactly (ATen/native/Lerp.h)."""
    near = weight.abs() < 0.5
    return torch.where(near, start, end) + torch.where(near, weight, weight - 1) * (end - start)


def addcmul(base: Tensor, first: Tensor, second: Tensor, value: Any = 1) -> Tensor:
    """Add the product of `value`, `first` and `second`, in the order of PyTorch's kernel for the device.

    The order affects overflow.
    """
    product: Tensor = value * (first * second) if base.is_cuda else value * first * second
    return base + product


def addcdiv(base: Tensor, first: Tensor, second: Tensor, value: Any = 1) -> Tensor:
    """Add a quotient in the order of PyTorch's kernels (PointwiseOpsKernel.cpp and .cu)."""
    quotient: Tensor = value * (first / second) if base.is_cuda else value * first / second
    return base + quotient


FORMULAS: dict[str, Formula] = {
    "add": lambda left, right, alpha=1: left + right * alpha,
    "sub": lambda left, right, alpha=1: left - right * alpha,
    "rsub": lambda left, right, alpha=1: right - left * alpha,
    "mul": lambda left, right: left * right,
    "div": lambda left, right: left / right,
    "addcmul": addcmul,
    "addcdiv": addcdiv,
    "lerp": lerp,
    "fill": lambda left, value: value.expand(left.shape),
}
KEYWORDS = frozenset({"alpha", "value"})


def formula_of(operation: BoundSymbol) -> Formula | None:
    """Return the formula that computes the operation from tensors; None if there is none."""
    result = operation.args[0] if operation.output is None else operation.output
    if (
        not isinstance(result, TensorProxy)
        or not result.dtype.is_floating_point
        or not operation.kwargs.keys() <= KEYWORDS
    ):
        return None
    return FORMULAS.get(operation.symbol.target._schema.name.partition("::")[2].removesuffix("_"))  # type: ignore[attr-defined]


def takes_numbers(operation: BoundSymbol) -> bool:
    """Whether the operation takes a number that changes from call to call."""
    return any(type(leaf) is Proxy for leaf in leaves((operation.args, dict(operation.kwargs))))


def compute(formula: Formula, dtype: torch.dtype, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the result of a formula in a dtype; numbers are passed as float64 tensors."""

    def wide(value: Any) -> Any:
        return value.to(COMPUTE_DTYPES.get(dtype, dtype)) if isinstance(value, Tensor) else value

    return formula(*map(wide, args), **{name: wide(value) for name, value in kwargs.items()}).to(dtype)
