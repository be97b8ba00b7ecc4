"""Lists, tuples and ranges of symbolic length: copies, lengths, sums and tensors of them, for all lengths."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from thunder_core.frontend.acquire.lookasides.table import lookaside_of_each
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.sequences import (
    SEQUENCE_CLASSES,
    SEQUENCES,
    Progression,
    SymbolicSequence,
    repeated_sequence,
    sum_of_sequences,
)

SUMS = (operator.add, operator.iadd)
OPTIONS = frozenset({"dtype", "device", "requires_grad"})
DTYPES = (None, torch.int64, torch.float32, torch.float64, torch.bool)  # conversions to others may be errors


def is_unread(value: object) -> bool:
    """Whether a value is a sequence of symbolic length whose items were not read."""
    return type(value) in SEQUENCE_CLASSES and not getattr(value, "is_read", True)


@lookaside_of_each(list, tuple)
def copy_of(function: type, run: TracedRun, /, *args: Any, **kwargs: Any) -> SymbolicSequence | NotTaken:
    """Return a list or tuple of the numbers of a sequence."""
    if len(args) != 1 or kwargs or not is_unread(args[0]):
        return NOT_TAKEN
    return SEQUENCES[function](args[0].progressions)


def operation_on_sequences(function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """Return the sum of sequences, or a list of one number that is repeated a symbolic number of times."""
    value = None
    if function in SUMS and any(map(is_unread, operands)):
        value = sum_of_sequences(*operands)
    elif function is operator.mul and any(isinstance(operand, SymbolicNumber) for operand in operands):
        items, count = operands if isinstance(operands[1], SymbolicNumber) else reversed(operands)
        value = repeated_sequence(items, count) if count.size is not None else None
    return NOT_TAKEN if value is None else value


def makes_tensor(sequence: object, kwargs: dict[str, Any]) -> bool:
    """Whether `torch.tensor` of a value with these options is known to be right for all lengths."""
    return is_unread(sequence) and not kwargs.keys() - OPTIONS and kwargs.get("dtype") in DTYPES


def tensor_of(run: TracedRun, sequence: SymbolicSequence, kwargs: dict[str, Any]) -> torch.Tensor:
    """Return `torch.tensor` of a sequence of symbolic length, for all lengths."""
    options = dict(kwargs)
    dtype, requires_grad = options.pop("dtype", None), options.pop("requires_grad", False)
    parts = [part_of(run, part, dtype, options) for part in sequence.progressions]
    call = run.machine.call
    tensor: torch.Tensor = parts[0] if len(parts) == 1 else call(torch.cat, parts)
    if dtype is not None:
        tensor = call(torch.Tensor.to, tensor, dtype)
    return call(torch.Tensor.requires_grad_, tensor) if requires_grad else tensor


def part_of(run: TracedRun, part: Progression, dtype: torch.dtype | None, options: dict[str, Any]) -> torch.Tensor:
    """Return the tensor of a progression, with the dtype of its numbers, or with the given dtype if they are equal."""
    if not part.step:
        is_real = type(part.start) is float
        chosen = dtype if is_real and dtype is not None else kind_of(part.start)
        return run.machine.call(torch.full, (part.count,), part.start, dtype=chosen, **options)  # type: ignore[no-any-return]
    stop = part.item(part.count)
    return run.machine.call(torch.arange, part.start, stop, part.step, dtype=torch.int64, **options)  # type: ignore[no-any-return]


def kind_of(number: object) -> torch.dtype:
    """Return the dtype of a tensor of a number."""
    if type(number) is float:
        return torch.get_default_dtype()
    return torch.bool if type(number) is bool else torch.int64
