"""Autocast's state as bound symbols of a trace: operations mean something else where it is on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.symbol import BoundSymbol

AUTOCAST_DEVICES = ("cpu", "cuda")  # the kinds of devices that programs run on; PyTorch has autocast for more
State = tuple[tuple[bool, torch.dtype], ...]


def autocast_devices(*, elsewhere: bool = False) -> tuple[str, ...]:
    """The kinds of devices for which autocast matters to a program that runs here, or on a machine elsewhere."""
    return AUTOCAST_DEVICES if elsewhere or torch.cuda.is_available() else ("cpu",)


DEVICES = autocast_devices()
is_enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype


def autocast_state() -> State:
    """Whether autocast is on and in which dtype, for each kind of device."""
    return tuple([(is_enabled(kind), dtype_of(kind)) for kind in DEVICES])


def changes(before: State, after: State) -> Iterator[BoundSymbol]:
    """The bound symbols that lead from one state to another; what was cast in the first is not used in the second."""
    for kind, old, new in zip(DEVICES, before, after, strict=True):
        if old[0] != new[0]:
            yield _call(torch.set_autocast_enabled, kind, new[0])
        if old[1] != new[1]:
            yield _call(torch.set_autocast_dtype, kind, new[1])
    if before != after:
        yield _call(torch.clear_autocast_cache)


def _call(function: Callable[..., Any], *args: Any) -> BoundSymbol:
    return BoundSymbol(symbol_of(function), args, {}, None, ordered=True)
