"""Proxies: the names in a trace, each with the known metadata of its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.utils._dtype_abbrs import dtype_abbrs

from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.tracing.ir.sizes import expressions, hint_of, sizes_for_trace, symbols_of


@with_quick_init
@dataclass(frozen=True)
class Proxy:
    """A name in a trace that represents any Python object.

    `kind` is the type of a number, and None for other objects.
    """

    name: str
    kind: type | None = field(default=None, compare=False, repr=False, kw_only=True)

    def __str__(self) -> str:
        return self.name

    @property
    def described(self) -> str:
        """A comment on the value; empty if nothing is known."""
        return ""


@dataclass(frozen=True)
class NumberProxy(Proxy):
    """A name that represents a symbolic number among the inputs of the trace.

    `value` is the number as a symbolic number of PyTorch, which operations on tensors without data accept.
    """

    value: Any = field(compare=False, repr=False)

    @property
    def described(self) -> str:
        """The expression, such as `2*s0`."""
        return str(self.value)


@with_quick_init
@dataclass(frozen=True)
class TensorProxy(Proxy):
    """A name that represents a tensor with this metadata; sizes and strides are in elements.

    `overrides` is True if the tensor or its class replaces methods or attributes of `torch.Tensor`. If `is_conj` or
    `is_neg` is True (`z.conj()`, `z.conj().imag`), PyTorch conjugates or negates the values in memory when it reads
    them.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    overrides: bool = False
    is_conj: bool = False
    is_neg: bool = False

    @property
    def described(self) -> str:
        """A description such as `f32[2, 128, 64]`, with the device if it is not the CPU."""
        device = "" if self.device.type == "cpu" else f" {self.device}"
        bits = f"{' conj' if self.is_conj else ''}{' neg' if self.is_neg else ''}"
        return f"{dtype_abbrs.get(self.dtype, str(self.dtype))}[{', '.join(map(str, self.shape))}]{device}{bits}"

    @property
    def is_resolved(self) -> bool:
        """Whether the memory has the values of the tensor, so that a kernel may read it directly."""
        return not (self.is_conj or self.is_neg)

    @property
    def is_channels_last(self) -> bool:
        """Whether the tensor is a batch of images in the channels-last layout, dense in memory."""
        if len(self.shape) != 4:
            return False
        sizes, strides = expressions(self.shape), expressions(self.stride)
        step = sympy.Integer(1)
        for dimension in (1, 3, 2, 0):
            if sizes[dimension] != 1 and sympy.expand(strides[dimension] - step) != 0:
                return False
            step *= sizes[dimension]
        return True

    def with_name(self, name: str) -> TensorProxy:
        """Return a proxy with this metadata and another name."""
        proxy = object.__new__(type(self))
        vars(proxy).update(vars(self), name=name)  # takes a tenth of the time of `replace`
        return proxy

    @property
    def bytes(self) -> int:
        """The bytes of a dense tensor of this shape."""
        elements = 1
        for size in self.shape:
            elements *= hint_of(size)
        return elements * self.dtype.itemsize


def slice_proxy(stack: TensorProxy) -> TensorProxy:
    """Return the proxy of one slice of a tensor along its first dimension."""
    return replace(stack, shape=stack.shape[1:], stride=stack.stride[1:])


def tensor_proxy(name: str, tensor: torch.Tensor) -> TensorProxy:
    """Return a proxy of the given name with the tensor's metadata."""
    strided = tensor.layout is torch.strided
    return TensorProxy(
        name=name,
        shape=sizes_for_trace(tensor.shape),
        stride=sizes_for_trace(tensor.stride()) if strided else (),
        dtype=tensor.dtype,
        device=tensor.device,
        requires_grad=tensor.requires_grad,
        is_conj=tensor.is_conj(),
        is_neg=tensor.is_neg(),
    )


def symbolic_sizes_of(proxies: Iterable[Proxy]) -> Iterator[Any]:
    """Yield the symbolic integers in the sizes and strides of tensors, and the values of numbers, in order."""
    for proxy in proxies:
        if isinstance(proxy, NumberProxy):
            yield proxy.value
        elif isinstance(proxy, TensorProxy):
            sizes: tuple[Any, ...] = (*proxy.shape, *proxy.stride)
            yield from (size for size in sizes if isinstance(size, torch.SymInt))


def environment_of(proxies: Iterable[Proxy]) -> Any:
    """Return PyTorch's shape environment of the symbols in tensor sizes and numbers; None without symbols."""
    return next((size.node.shape_env for size in symbolic_sizes_of(proxies)), None)


def symbols_in(proxies: Iterable[Proxy]) -> tuple[NumberProxy, ...]:
    """Return the symbols of all tensor sizes and numbers as number proxies, in the order of first use."""
    numbers: dict[Any, NumberProxy] = {}
    for size in symbolic_sizes_of(proxies):
        environment = size.node.shape_env
        for symbol in symbols_of(size.node.expr):
            if symbol not in numbers:
                hint = int(environment.backed_var_to_val[symbol])
                numbers[symbol] = environment.proxy_of(environment.create_symintnode(symbol, hint=hint))
    return tuple(numbers.values())


def with_sizes(leaf: object, size: Callable[[Any], Any]) -> Any:
    """Return a proxy with `size` applied to its sizes and strides or to its number; return other leaves unchanged."""
    if isinstance(leaf, NumberProxy):
        return replace(leaf, value=size(leaf.value))
    if not isinstance(leaf, TensorProxy):
        return leaf
    return replace(leaf, shape=tuple(map(size, leaf.shape)), stride=tuple(map(size, leaf.stride)))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its module: `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")
