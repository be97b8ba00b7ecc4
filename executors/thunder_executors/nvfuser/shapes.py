"""Rules of operations that fill or join tensors, or change a tensor's shape or order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.nvfuser.definition import (
    Definition,
    Unsupported,
    arguments,
    call,
    data_type,
    number,
    result_of,
    rule,
)
from thunder_executors.nvfuser.elementwise import broadcast
from thunder_executors.nvfuser.reductions import dimensions


@rule("full", "zeros", "ones", "full_like", "zeros_like", "ones_like", "scalar_tensor", "new_zeros", "new_ones")
def constant(definition: Definition, operation: BoundSymbol) -> str:
    """Return a tensor filled with one number."""
    named = arguments(operation)
    target: Any = operation.symbol.target
    name = target.overloadpacket.__name__
    value = named.get("fill_value", named.get("s", 1 if "ones" in name else 0))
    proxy = result_of(operation)
    return call("full", shape=list(proxy.shape), fill_value=number(value), dtype=data_type(proxy.dtype))


@rule("cat")
def concatenate(definition: Definition, operation: BoundSymbol) -> str:
    """Return the concatenation of tensors."""
    named, proxy = arguments(operation), result_of(operation)
    tensors: Sequence[TensorProxy] = named["tensors"]
    if len(tensors) < 2 or any(
        tensor.dtype != proxy.dtype or len(tensor.shape) != len(proxy.shape) for tensor in tensors
    ):
        raise Unsupported("cat of unequal tensors")
    names = f"[{', '.join(tensor.name for tensor in tensors)}]"
    return call("cat", names, dim=named["dim"] % len(proxy.shape))


@rule("clone", "contiguous", "alias", "detach", "lift_fresh", moves_data=True)
def same(definition: Definition, operation: BoundSymbol) -> str:
    """Return the operand."""
    return call("set", operation.inputs[0].name)


@rule("view", "_unsafe_view", "reshape", moves_data=True)
def reshape(definition: Definition, operation: BoundSymbol) -> str:
    """Return the elements of a tensor, in order, in another shape."""
    if len(operation.args) != 2 or not isinstance(operation.args[1], Sequence):
        raise Unsupported("a view in another dtype")
    return call("reshape", operation.inputs[0].name, new_shape=list(result_of(operation).shape))


@rule("permute", "transpose", "t", moves_data=True)
def permute(definition: Definition, operation: BoundSymbol) -> str:
    """Return the tensor with its dimensions in another order."""
    named = arguments(operation)
    rank = len(named["self"].shape)
    order = list(range(rank))
    if "dims" in named:
        order = [dim % rank for dim in named["dims"]]
    elif rank > 1:
        first, second = (named.get("dim0", 0) % rank, named.get("dim1", 1) % rank)
        order[first], order[second] = second, first
    return call("permute", named["self"].name, dims=order)


@rule("expand", moves_data=True)
def expand(definition: Definition, operation: BoundSymbol) -> str:
    """Return the tensor with dimensions of size one expanded, and new leading dimensions."""
    return broadcast(operation.args[0], result_of(operation).shape)


@rule("unsqueeze", moves_data=True)
def unsqueeze(definition: Definition, operation: BoundSymbol) -> str:
    """Return the tensor with a new dimension of size one."""
    named, shape = arguments(operation), result_of(operation).shape
    new = named["dim"] % len(shape)
    broadcast_dims = [index for index in range(len(shape)) if index != new]
    return call("broadcast_in_dim", named["self"].name, shape=list(shape), broadcast_dims=broadcast_dims)


@rule("squeeze", moves_data=True)
def squeeze(definition: Definition, operation: BoundSymbol) -> str:
    """Return the tensor without dimensions of size one."""
    named = arguments(operation)
    proxy: TensorProxy = named["self"]
    dims = [dim for dim in dimensions(named.get("dim"), proxy) if proxy.shape[dim] == 1]
    return call("squeeze", proxy.name, dims=dims) if dims else call("set", proxy.name)


@rule("slice", moves_data=True)
def slice_dimension(definition: Definition, operation: BoundSymbol) -> str:
    """Return a slice of a dimension."""
    named = arguments(operation)
    if named["step"] != 1:
        raise Unsupported("slice with a step")
    proxy: TensorProxy = named["self"]
    dim = named["dim"] % len(proxy.shape)
    length = result_of(operation).shape[dim]
    start = named["start"] or 0
    first = min(max(start + (proxy.shape[dim] if start < 0 else 0), 0), proxy.shape[dim])
    return slice_along(proxy.name, proxy, dim, first, length)


def slice_along(name: str, proxy: TensorProxy, dim: int, first: int, length: int) -> str:
    """Return a slice of a tensor: `length` elements along a dimension, starting at `first`."""
    starts, ends = [0] * len(proxy.shape), list(proxy.shape)
    starts[dim], ends[dim] = first, first + length
    return call("slice", name, start_indices=starts, end_indices=ends)


@rule("select", moves_data=True)
def select(definition: Definition, operation: BoundSymbol) -> str:
    """Return one element of a dimension, which is removed."""
    named = arguments(operation)
    proxy: TensorProxy = named["self"]
    dim = named["dim"] % len(proxy.shape)
    return call("squeeze", slice_along(proxy.name, proxy, dim, named["index"] % proxy.shape[dim], 1), dims=[dim])


@rule("split", "split_with_sizes", moves_data=True)
def split(definition: Definition, operation: BoundSymbol) -> tuple[str, ...]:
    """Return consecutive slices of a dimension."""
    named = arguments(operation)
    proxy: TensorProxy = named["self"]
    dim = named["dim"] % len(proxy.shape)
    lengths = [output.shape[dim] for output in operation.outputs if isinstance(output, TensorProxy)]
    return tuple(slice_along(proxy.name, proxy, dim, sum(lengths[:index]), size) for index, size in enumerate(lengths))
