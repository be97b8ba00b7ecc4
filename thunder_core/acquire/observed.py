"""The numbers and sizes from outside that a program was traced with, for comparison with those of later calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from thunder_core.acquire.guards import Guard
from thunder_core.acquire.outside import NUMBERS
from thunder_core.acquire.symbolic import Symbolic, is_parameter
from thunder_core.runtime.observed_values import Number, unambiguous


def observed_values(guards: Iterable[Guard], symbolic: Symbolic) -> dict[str, Number]:
    """The value of each number and size that a recording guards as a constant or took as a symbol, by its path."""
    values: dict[str, set[Number]] = {}
    for path, value in guarded_values(guards):
        values.setdefault(path, set()).add(value)
    return unambiguous(values) | symbolic.met_numbers | symbolic.met_sizes


def guarded_values(guards: Iterable[Guard]) -> Iterator[tuple[str, Number]]:
    """Yield the path and the expected value of each number and each size of a tensor that a guard wants unchanged."""
    for guard in guards:
        if guard.kind == "equal" and type(guard.expected) in NUMBERS:
            yield str(guard.path), guard.expected
        elif guard.kind in ("equal", "values") and type(guard.expected) in (torch.Size, tuple):
            numbers = ((place, one) for place, one in enumerate(guard.expected) if type(one) in NUMBERS)
            yield from ((f"{guard.path}[{place}]", one) for place, one in numbers)
        elif guard.kind == "tensor" and not is_parameter(guard.path):
            sizes = enumerate(guard.path.value.shape)
            yield from ((f"{guard.path}.size({place})", size) for place, size in sizes)
