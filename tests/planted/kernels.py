"""Faults of kernels: the result of a line is changed in one of several ways."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

Spoil = Callable[[torch.Tensor], torch.Tensor]


def first_element(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The tensor with another element in the middle."""
    spoiled = like(tensor, tensor)
    place = torch.unravel_index(torch.tensor(tensor.numel() // 2), tensor.shape)
    spoiled[place] = change(spoiled[place])
    return spoiled


def without_last_row(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with zeros in its last row."""
    spoiled = like(tensor, tensor)
    spoiled.select(next((d for d in range(tensor.ndim) if tensor.shape[d] > 1), 0), -1).zero_()
    return spoiled


def like(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the values with the strides of a tensor."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(values)


FLOATS: Mapping[str, Spoil] = {
    "scaled by 1.001": lambda t: like(t * 1.001, t),
    "1e-4 too large": lambda t: like(t + 1e-4 * t.abs().max(), t),
    "one element 1% off": lambda t: first_element(t, lambda one: one * 1.01 + 1e-3 * t.abs().max()),
    "rounded to float16": lambda t: like(t.half(), t),
    "rounded to bfloat16": lambda t: like(t.bfloat16(), t),
    "rolled by one": lambda t: like(t.roll(1, -1), t) if t.ndim else t + 1,
    "last row zero": lambda t: without_last_row(t) if t.ndim else t * 0,
    "one element NaN": lambda t: first_element(t, lambda one: one * torch.nan),
    "one sign flipped": lambda t: first_element(t, lambda one: -one - 1e-3),
    "relative error of 1e-4": lambda t: like(t * (1 + 1e-4 * torch.linspace(-1, 1, t.numel()).view(t.shape)), t),
}
INTEGERS: Mapping[str, Spoil] = {
    "one element more": lambda t: first_element(t, lambda one: one + 1),
    "rolled by one": lambda t: like(t.roll(1, -1), t) if t.ndim else t + 1,
}
BOOLEANS: Mapping[str, Spoil] = {
    "one element inverted": lambda t: first_element(t, torch.logical_not),
    "inverted": lambda t: ~t,
}


def spoils_for(proxy: TensorProxy) -> Mapping[str, Spoil]:
    """The ways to change a tensor of its dtype."""
    if proxy.dtype == torch.bool:
        return BOOLEANS
    return FLOATS if proxy.dtype.is_floating_point else INTEGERS


def spoiled_target(bsym: BoundSymbol, result: TensorProxy, spoil: Spoil) -> Callable[..., Any]:
    """The callable of a bound symbol with one of its results changed."""
    target = bsym.symbol.target

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        returned = target(*args, **kwargs)
        if isinstance(bsym.output, TensorProxy):
            return spoil(returned)
        place = next(n for n, proxy in enumerate(bsym.output) if getattr(proxy, "name", "") == result.name)
        values = list(returned)
        values[place] = spoil(values[place])
        return type(returned)(values) if type(returned) in (tuple, list) else tuple(values)

    return call


def claimed_places(trace: Trace) -> Iterator[tuple[int, TensorProxy]]:
    """The indices of lines that executors other than eager PyTorch run, with each of their results."""
    for index, bsym in enumerate(trace.bound_symbols):
        if bsym.executor not in ("", "torch"):
            yield from ((index, proxy) for proxy in bsym.tensors if all(proxy.shape) or not proxy.shape)


def with_spoiled_line(trace: Trace, place: int, result: TensorProxy, spoil: Spoil) -> Trace:
    """The trace with a line whose result is changed."""
    bsyms = list(trace.bound_symbols)
    bsym = bsyms[place]
    symbol = replace(bsym.symbol, target=spoiled_target(bsym, result, spoil))
    bsyms[place] = replace(bsym, symbol=symbol)
    return trace.having(bsyms, made_by=trace.made_by)
