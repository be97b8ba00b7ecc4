"""Autocast's state as bound symbols of a trace, because it changes the meaning of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.symbol import BoundSymbol

AUTOCAST_DEVICES = ("cpu", "cuda")  # the devices that programs run on; PyTorch supports autocast on more
State = tuple[tuple[bool, torch.dtype], ...]


def autocast_devices(*, elsewhere: bool = False) -> tuple[str, ...]:
    """Return the device types whose autocast state matters to a program: on this machine, or with `elsewhere` on any
    machine.
    """
    return AUTOCAST_DEVICES if elsewhere or torch.cuda.is_available() else ("cpu",)


DEVICES = autocast_devices()
is_enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype


def autocast_state() -> State:
    """Return for each device type whether autocast is on, and its dtype."""
    return tuple([(is_enabled(kind), dtype_of(kind)) for kind in DEVICES])


def changes(before: State, after: State) -> Iterator[BoundSymbol]:
    """Yield the bound symbols that change one state to another; they also clear the cache of cast tensors."""
    for kind, old, new in zip(DEVICES, before, after, strict=True):
        if old[0] != new[0]:
            yield _bind_call(torch.set_autocast_enabled, kind, new[0])
        if old[1] != new[1]:
            yield _bind_call(torch.set_autocast_dtype, kind, new[1])
    if before != after:
        yield _bind_call(torch.clear_autocast_cache)


def _bind_call(function: Callable[..., Any], *args: Any) -> BoundSymbol:
    return BoundSymbol(symbol_of(function), args, {}, None, ordered=True)
