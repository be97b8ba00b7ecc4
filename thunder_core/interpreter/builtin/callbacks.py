"""C functions that call Python back: their callables and iterables are bridged, the rest is theirs."""

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thunder_core.interpreter import bridges
from thunder_core.interpreter.calls import REPLACED, Arguments, Keywords

if TYPE_CHECKING:
    from thunder_core.interpreter.machine import Machine


@dataclass(frozen=True)
class Bridged:
    """Which arguments of a C function are callables and which are iterables; `rest` tells of all further ones."""

    callables: tuple[int | str, ...] = ()
    iterables: tuple[int | str, ...] = ()
    rest: bool = False

    def __call__(self, machine: "Machine", function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call natively with bridges in place of what would run Python code."""
        bridged = [self._argument(machine, position, value) for position, value in enumerate(arguments)]
        named = {name: self._argument(machine, name, value) for name, value in keywords.items()}
        return function(*bridged, **named)

    def _argument(self, machine: "Machine", position: int | str, value: Any) -> Any:
        """One argument as the C function gets it."""
        if position in self.callables:
            return bridges.callback(machine, value)
        if position in self.iterables or (self.rest and isinstance(position, int)):
            return bridges.iterable(machine, value)
        return value


_ITERABLE = Bridged(iterables=(0,))
REPLACED.update(
    {
        all: _ITERABLE,
        any: _ITERABLE,
        enumerate: Bridged(iterables=(0, "iterable")),
        filter: Bridged(callables=(0,), iterables=(1,)),
        frozenset: _ITERABLE,
        functools.reduce: Bridged(callables=(0,), iterables=(1,)),
        itertools.groupby: Bridged(callables=(1, "key"), iterables=(0, "iterable")),
        itertools.starmap: Bridged(callables=(0,), iterables=(1,)),
        list: _ITERABLE,
        map: Bridged(callables=(0,), rest=True),
        set: _ITERABLE,
        sorted: Bridged(callables=("key",), iterables=(0,)),
        sum: _ITERABLE,
        tuple: _ITERABLE,
        zip: Bridged(rest=True),
    }
)


def _extreme(machine: "Machine", function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """`min` and `max`: one iterable, or the values themselves."""
    shape = Bridged(callables=("key",), iterables=(0,) if len(arguments) == 1 else ())
    return shape(machine, function, arguments, keywords)


REPLACED.update({min: _extreme, max: _extreme})
