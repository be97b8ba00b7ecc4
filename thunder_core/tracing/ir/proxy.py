"""Proxies: the names of a trace, each with what is known of the value that it will stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._dtype_abbrs import dtype_abbrs

from thunder_core.tracing.ir.sizes import hint_of, sizes_for_trace, symbols_of


@dataclass(frozen=True)
class Proxy:
    """A name in a trace that stands for any Python object."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def described(self) -> str:
        """A comment on the value; empty when nothing is known of it."""
        return ""


@dataclass(frozen=True)
class NumberProxy(Proxy):
    """A name that stands for a number that is an input of the trace: an expression in its symbols.

    `value` is the number in PyTorch's environment of symbols: operations on tensors without data take it.
    """

    value: Any = field(compare=False, repr=False)

    @property
    def described(self) -> str:
        """The expression, such as `2*s0`."""
        return str(self.value)


@dataclass(frozen=True)
class TensorProxy(Proxy):
    """A name that stands for a tensor with this metadata; sizes and strides are in elements.

    One that `overrides` is of a subclass with methods or attributes in place of those of `torch.Tensor`.
    Of a tensor that `is_conj` or `is_neg` (`z.conj()`, `z.conj().imag`), PyTorch conjugates or negates what lies in
    memory when it reads it.
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
        """For example `f32[2, 128, 64]`, with the device where it is not the CPU."""
        device = "" if self.device.type == "cpu" else f" {self.device}"
        bits = f"{' conj' if self.is_conj else ''}{' neg' if self.is_neg else ''}"
        return f"{dtype_abbrs.get(self.dtype, str(self.dtype))}[{', '.join(map(str, self.shape))}]{device}{bits}"

    @property
    def is_resolved(self) -> bool:
        """Whether the values of the tensor are those in its memory, so that a kernel may read them there."""
        return not (self.is_conj or self.is_neg)

    def named(self, name: str) -> TensorProxy:
        """A proxy with this one's metadata and another name."""
        proxy = object.__new__(type(self))
        vars(proxy).update(vars(self), name=name)  # a tenth of the time of `replace`
        return proxy

    @property
    def bytes(self) -> int:
        """The bytes that a dense tensor of this shape takes."""
        elements = 1
        for size in self.shape:
            elements *= hint_of(size)
        return elements * self.dtype.itemsize


def slice_proxy(stack: TensorProxy) -> TensorProxy:
    """Return the proxy of one slice of a tensor along its first dimension."""
    return replace(stack, shape=stack.shape[1:], stride=stack.stride[1:])


def tensor_proxy(name: str, tensor: torch.Tensor) -> TensorProxy:
    """The proxy of that name with the tensor's metadata."""
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
    """The symbolic integers in the sizes and strides of tensors, and behind numbers, in their order."""
    for proxy in proxies:
        if isinstance(proxy, NumberProxy):
            yield proxy.value
        elif isinstance(proxy, TensorProxy):
            sizes: tuple[Any, ...] = (*proxy.shape, *proxy.stride)
            yield from (size for size in sizes if isinstance(size, torch.SymInt))


def environment_of(proxies: Iterable[Proxy]) -> Any:
    """PyTorch's environment of the symbols in the sizes of tensors and in numbers; None where there are none."""
    return next((size.node.shape_env for size in symbolic_sizes_of(proxies)), None)


def symbols_in(proxies: Iterable[Proxy]) -> tuple[NumberProxy, ...]:
    """The symbols of all sizes of tensors and numbers, each as a number, in the order in which they are met."""
    numbers: dict[Any, NumberProxy] = {}
    for size in symbolic_sizes_of(proxies):
        environment = size.node.shape_env
        for symbol in symbols_of(size.node.expr):
            if symbol not in numbers:
                hint = int(environment.backed_var_to_val[symbol])
                numbers[symbol] = environment.proxy_of(environment.create_symintnode(symbol, hint=hint))
    return tuple(numbers.values())


def with_sizes(leaf: Any, size: Callable[[Any], Any]) -> Any:
    """A proxy with `size` of each of its sizes and strides, or of its number, in their place; all else as it is."""
    if isinstance(leaf, NumberProxy):
        return replace(leaf, value=size(leaf.value))
    if not isinstance(leaf, TensorProxy):
        return leaf
    return replace(leaf, shape=tuple(map(size, leaf.shape)), stride=tuple(map(size, leaf.stride)))
