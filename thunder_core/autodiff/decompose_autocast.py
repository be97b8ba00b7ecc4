"""Beneath autocast: the operations that autocast makes of lines, its casts among them, which run with autocast off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from thunder_core.autodiff.rules import is_ruled
from thunder_core.autodiff.tape import Underivable
from thunder_core.capture.symbols import as_line, symbol_of
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.lower.region import operations_of

DEVICES = ("cpu", "cuda")


def is_under_autocast(lines: Iterable[BoundSymbol]) -> bool:
    """Whether autocast is on in this thread, or some line may switch it on."""
    return any(map(torch.is_autocast_enabled, DEVICES)) or any(map(switches_autocast, lines))


def switches_autocast(line: BoundSymbol) -> bool:
    """Whether a line changes the state of autocast."""
    return "autocast" in line.symbol.short_name


def beneath_autocast(lines: Iterable[BoundSymbol]) -> list[BoundSymbol]:
    """The lines as their aten operations, without the switches of autocast.

    Raises `Underivable` for a line that takes tensors and whose operations are not known.
    """
    return [part for line in lines if not switches_autocast(line) for part in _parts(line)]


def _parts(line: BoundSymbol) -> Iterator[BoundSymbol]:
    if is_ruled(line):
        raise Underivable(f"`{line.symbol.name}` has a derivative of its own, under autocast")
    if not operations_of(line):
        if line.ordered or not any(isinstance(proxy, TensorProxy) for proxy in line.inputs):
            yield line
            return
        raise Underivable(f"`{line.symbol.name}`: what autocast makes of it is not known")
    for part in operations_of(line):
        yield part if part is line else as_line(part, line)


def switched(lines: Sequence[BoundSymbol], on: Sequence[str] | None = None) -> list[BoundSymbol]:
    """Lines that run beneath autocast, in a program that runs under it: it is off for them on the devices `on`."""
    if on is None:
        on = [device for device in DEVICES if torch.is_autocast_enabled(device)]
    return [*(_switch(device, False) for device in on), *lines, *(_switch(device, True) for device in on)]


def _switch(device: str, enabled: bool) -> BoundSymbol:
    return BoundSymbol(symbol_of(torch.set_autocast_enabled), (device, enabled), {}, None, ordered=True)
