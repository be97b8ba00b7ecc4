"""Readers of values outside of a program that the backward of a `torch.autograd.Function` reads when it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.passes.autodiff.rules import applied_class
from thunder_core.tracing.ir.trace import Trace

# For each kind of step that can be repeated at any time, the function that reads the value, given the owner and the
# key.
STEPS: dict[str, Callable[[Any, Any], object]] = {
    "attribute": getattr,
    "closure": lambda function, key: function.__closure__[key[0]],
    "entry": lambda owner, name: vars(owner)[name],
    "item": lambda owner, key: owner[key],
}


@dataclass(frozen=True, eq=False)
class ValueReader:
    """Reads a value again: the value at the end of the `steps` from an object. A step is its kind and its key."""

    root: Any
    steps: tuple[tuple[str, Any], ...] = ()

    def __call__(self) -> object:
        """Return the current value."""
        value = self.root
        for kind, key in self.steps:
            value = STEPS[kind](value, key)
        return value


_readers: dict[type[torch.autograd.Function], dict[str, ValueReader]] = {}  # by the path of the value


def note_backward_reads(kind: type[torch.autograd.Function], readers: Mapping[str, ValueReader]) -> None:
    """Register readers, by path, of the values outside of programs that the backward of a function reads."""
    _readers.setdefault(kind, {}).update(readers)


def backward_readers(trace: Trace) -> tuple[ValueReader, ...]:
    """Return the readers of all values outside of a trace that the backwards of the trace's functions read."""
    kinds = dict.fromkeys(applied_class(bsym.symbol.target) for bsym in trace.bound_symbols)
    return tuple(reader for kind in kinds if kind is not None for reader in _readers.get(kind, {}).values())


def read_values(readers: Iterable[Callable[[], object]]) -> list[tuple[type, object]]:
    """Call each reader, and return its value with the type of the value.

    If a reader raises an error because its value is missing, the value is the text of the error.
    """
    values: list[object] = []
    for read in readers:
        try:
            values.append(read())
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            values.append(str(error))
    return [(type(value), value) for value in values]
