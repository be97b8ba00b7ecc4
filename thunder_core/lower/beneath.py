"""Beneath autocast: the operations that autocast makes of lines, its casts among them, which run with autocast off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from thunder_core.capture.derivative import Underivable
from thunder_core.capture.rules import is_ruled
from thunder_core.capture.symbols import is_random, symbol_of, written_values
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves
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
        yield part if part is line else _as_line(part, line)


def _as_line(operation: BoundSymbol, line: BoundSymbol) -> BoundSymbol:
    """An operation as a line of its own: with its effects, at the place of the line that it is a part of."""
    target = operation.symbol.target
    mutates: tuple[str, ...] = ()
    ordered = False
    if isinstance(target, torch._ops.OpOverload):
        given = written_values(target, operation.args, operation.kwargs)
        mutates = tuple(leaf.name for tree in given for leaf in leaves(tree) if isinstance(leaf, Proxy))
        ordered = is_random(target, operation.args, operation.kwargs)
    return replace(operation, mutates=mutates, ordered=ordered, source=line.source, module=line.module)


def switched(lines: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """Lines that run beneath autocast, in a program that runs under it: it is off for them."""
    on = [device for device in DEVICES if torch.is_autocast_enabled(device)]
    return [*(_switch(device, False) for device in on), *lines, *(_switch(device, True) for device in on)]


def _switch(device: str, enabled: bool) -> BoundSymbol:
    return BoundSymbol(symbol_of(torch.set_autocast_enabled), (device, enabled), {}, None, ordered=True)
