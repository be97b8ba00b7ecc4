"""The values of outside numbers and sizes in a traced call, for comparison with later calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from thunder_core.backend.runtime.observed_values import Number, unambiguous
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.tensors import TensorMetadata
from thunder_core.frontend.acquire.outside.guards.values import NUMBERS, Equal, Values
from thunder_core.frontend.acquire.outside.symbolic import Symbolic, is_parameter
from thunder_core.tracing.ir.sizes import dimensions_with_gaps


def observed_values(guards: Iterable[Guard], symbolic: Symbolic) -> dict[str, Number]:
    """Return the values of the numbers and sizes that a recording guards as constants or uses as symbols, by path."""
    values: dict[str, set[Number]] = {}
    for path, value in guarded_values(guards):
        values.setdefault(path, set()).add(value)
    return unambiguous(values) | symbolic.met_numbers | symbolic.met_sizes


def guarded_values(guards: Iterable[Guard]) -> Iterator[tuple[str, Number]]:
    """Yield the path and the expected value of each number, size and stride that a guard fixes."""
    for guard in guards:
        if isinstance(guard, Equal) and guard.guards_number:
            yield str(guard.path), guard.value
        elif isinstance(guard, Values) or (isinstance(guard, Equal) and isinstance(guard.value, torch.Size)):
            values = guard.values if isinstance(guard, Values) else guard.value
            numbers = ((index, value) for index, value in enumerate(values) if type(value) in NUMBERS)
            yield from ((f"{guard.path}[{index}]", value) for index, value in numbers)
        elif type(guard) is TensorMetadata and not is_parameter(guard.path):
            yield from sizes_and_strides(str(guard.path), guard.path.value)


def sizes_and_strides(path: str, tensor: torch.Tensor) -> Iterator[tuple[str, int]]:
    """Yield the path and value of each size of a tensor, and of each stride that its sizes do not determine."""
    yield from ((f"{path}.size({index})", size) for index, size in enumerate(tensor.shape))
    if tensor.layout is torch.strided:
        strides = tensor.stride()
        yield from (
            (f"{path}.stride({index})", strides[index]) for index in dimensions_with_gaps(strides, tensor.shape)
        )
