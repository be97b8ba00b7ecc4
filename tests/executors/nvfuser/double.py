"""A stand-in for `nvfuser_direct` that computes with PyTorch: as strict and as wide as nvFuser."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar

import torch

DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "BFloat16": torch.bfloat16, "Half": torch.float16,
    "Int": torch.int64, "Int32": torch.int32, "Bool": torch.bool,
}  # fmt: skip
SHORT = (torch.bfloat16, torch.float16)
DataType = types.SimpleNamespace(**DTYPES)


class Value:
    """A value that a definition names: a function of the inputs."""

    def __init__(self, of: Callable[[dict[int, torch.Tensor]], Any]) -> None:
        self.of = of

    def __getitem__(self, place: int) -> Value:
        return Value(lambda inputs: self.of(inputs)[place])


def evaluated(tree: Any, inputs: dict[int, torch.Tensor]) -> Any:
    if isinstance(tree, Value):
        return tree.of(inputs)
    return [evaluated(branch, inputs) for branch in tree] if isinstance(tree, list) else tree


def operation(function: Callable[..., Any]) -> Callable[..., Value]:
    return lambda *args, **kwargs: Value(lambda inputs: function(*evaluated(list(args), inputs), **kwargs))


def wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in SHORT else value


def elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Value]:
    """Apply an element-wise function: operands have one shape, and short floats become float32 and stay float32."""

    def apply(*operands: Any) -> torch.Tensor:
        assert len({operand.shape for operand in operands if isinstance(operand, torch.Tensor)}) == 1, operands
        return function(*map(wide, operands))

    return operation(apply)


def broadcast_in_dim(x: torch.Tensor, shape: list[int], broadcast_dims: list[int]) -> torch.Tensor:
    assert len(broadcast_dims) == x.dim()
    there = [1] * len(shape)
    for dim, size in zip(broadcast_dims, x.shape, strict=True):
        assert size in (1, shape[dim])
        there[dim] = size
    return x.reshape(there).expand(shape)


def where(condition: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    return torch.where(condition, x, y)


def power(x: Any, y: Any) -> torch.Tensor:
    return torch.pow(x, y)


def part(x: torch.Tensor, start_indices: list[int], end_indices: list[int]) -> torch.Tensor:
    assert all(0 <= first < last <= size for first, last, size in zip(start_indices, end_indices, x.shape, strict=True))
    return x[tuple(slice(*pair) for pair in zip(start_indices, end_indices, strict=True))]


def in_long(function: Callable[..., Any], **fixed: Any) -> Callable[..., Value]:
    def reduce(x: torch.Tensor, dims: list[int], keepdim: bool = False, **options: Any) -> Any:
        assert x.dtype not in SHORT
        return function(x, dim=dims, keepdim=keepdim, **fixed, **options)

    return operation(reduce)


ELEMENTWISE = (
    "abs acos acosh add asin asinh atan atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil cos cosh eq erf erfc "
    "exp exp2 expm1 floor ge gt isfinite isinf isnan le log log10 log1p log2 logical_and logical_not logical_or lt mul "
    "ne neg reciprocal relu rsqrt sigmoid sin sinh sqrt sub tan tanh trunc"
)
ops = types.SimpleNamespace(
    **{name: elementwise(getattr(torch, name)) for name in ELEMENTWISE.split()},
    silu=elementwise(torch.nn.functional.silu),
    truediv=elementwise(torch.true_divide),
    maximum=elementwise(lambda x, y: torch.clamp(x, min=y) if not torch.is_tensor(y) else torch.maximum(x, y)),
    minimum=elementwise(lambda x, y: torch.clamp(x, max=y) if not torch.is_tensor(y) else torch.minimum(x, y)),
    pow=elementwise(power),
    where=elementwise(where),
    sum=in_long(torch.sum),
    max=in_long(torch.amax),
    min=in_long(torch.amin),
    var=in_long(torch.var),
    var_mean=in_long(torch.var_mean),
    cast=operation(lambda x, dtype: x.to(dtype)),
    set=operation(lambda x: x),
    reshape=operation(lambda x, new_shape: x.reshape(new_shape)),
    permute=operation(lambda x, dims: x.permute(dims)),
    squeeze=operation(lambda x, dims: x.squeeze(dims)),
    slice=operation(part),
    cat=operation(lambda parts, dim: torch.cat(parts, dim)),
    full=operation(lambda shape, fill_value, dtype: torch.full(shape, fill_value, dtype=dtype)),
    broadcast_in_dim=operation(broadcast_in_dim),
)


class FusionDefinition:
    """A definition that `execute` computes. Results are dense, as nvFuser allocates them."""

    made: ClassVar[list[FusionDefinition]] = []

    def __init__(self) -> None:
        self.ops, self.inputs, self.outputs = ops, [], []
        FusionDefinition.made.append(self)

    def __enter__(self) -> FusionDefinition:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def define_tensor(self, *, sizes: list[int], strides: list[int], dtype: torch.dtype, static_sizes: bool) -> Value:
        assert static_sizes
        place = len(self.inputs)
        self.inputs.append((sizes, strides, dtype))
        return Value(lambda inputs: inputs[place])

    def add_output(self, value: Value) -> None:
        self.outputs.append(value)

    def execute(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        found = [(list(tensor.shape), list(tensor.stride()), tensor.dtype) for tensor in inputs]
        assert found == self.inputs
        given = dict(enumerate(inputs))
        return [value.of(given).clone(memory_format=torch.contiguous_format) for value in self.outputs]


def module() -> types.ModuleType:
    found = types.ModuleType("nvfuser_direct")
    found.__dict__.update(DataType=DataType, FusionDefinition=FusionDefinition)
    return found


def forget() -> None:
    """Forget the modules that imported the stand-in, so that they are imported again."""
    sys.modules.pop("thunder_executors.nvfuser.library", None)
