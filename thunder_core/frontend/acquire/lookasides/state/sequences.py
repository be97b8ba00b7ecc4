"""Operations on sequences of symbolic length that are recorded for all lengths: copies, sums and tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder_core.frontend.acquire.lookaside_table import lookaside_of_each
from thunder_core.frontend.acquire.run.sequence_operations import is_unread
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.symbolic.sequences import (
    SEQUENCES,
    Progression,
    SymbolicSequence,
)

TENSOR_OPTIONS = frozenset({"dtype", "device", "requires_grad"})
# Dtypes to which `torch.tensor` can convert all numbers. Conversions to other dtypes may raise errors.
SAFE_DTYPES = (None, torch.int64, torch.float32, torch.float64, torch.bool)


@lookaside_of_each(list, tuple)
def copy_of(function: type, run: TracedRun, /, *args: Any, **kwargs: Any) -> SymbolicSequence | NotTaken:
    """Return the list or tuple of symbolic length for `list(sequence)` and `tuple(sequence)`.

    Returns `NOT_TAKEN` for arguments that are no sequence of symbolic length.
    """
    if len(args) != 1 or kwargs or not is_unread(args[0]):
        return NOT_TAKEN
    return SEQUENCES[function](args[0].progressions)


def can_be_tensor(sequence: Any, kwargs: dict[str, Any]) -> bool:
    """Whether `tensor_of` can record `torch.tensor` of a value, with these options, for all lengths."""
    if not is_unread(sequence) or kwargs.keys() - TENSOR_OPTIONS or kwargs.get("dtype") not in SAFE_DTYPES:
        return False
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return not any(overflows(part.start, dtype) for part in sequence.progressions)


def overflows(number: object, dtype: torch.dtype) -> bool:
    """Whether a float is too large for a dtype: `torch.tensor` makes it infinite, and `torch.full` raises an error."""
    if type(number) is not float or not dtype.is_floating_point:
        return False
    return math.isfinite(number) and abs(number) > torch.finfo(dtype).max


def tensor_of(run: TracedRun, sequence: SymbolicSequence, kwargs: dict[str, Any]) -> torch.Tensor:
    """Return `torch.tensor` of a sequence of symbolic length, for all lengths."""
    options = dict(kwargs)
    dtype, requires_grad = options.pop("dtype", None), options.pop("requires_grad", False)
    parts = [progression_tensor(run, part, dtype, options) for part in sequence.progressions]
    call = run.machine.call
    tensor: torch.Tensor = parts[0] if len(parts) == 1 else call(torch.cat, parts)
    if dtype is not None:
        tensor = call(torch.Tensor.to, tensor, dtype)
    return call(torch.Tensor.requires_grad_, tensor) if requires_grad else tensor


def progression_tensor(
    run: TracedRun, part: Progression, dtype: torch.dtype | None, options: dict[str, Any]
) -> torch.Tensor:
    """Return the tensor of a progression, with the dtype of its numbers.

    If all numbers are the same float, the tensor has the given dtype, if any.
    """
    if not part.step:
        is_real = type(part.start) is float
        number_dtype = dtype if is_real and dtype is not None else dtype_of(part.start)
        return run.machine.call(torch.full, (part.count,), part.start, dtype=number_dtype, **options)  # type: ignore[no-any-return]
    stop = part.item(part.count)
    return run.machine.call(torch.arange, part.start, stop, part.step, dtype=torch.int64, **options)  # type: ignore[no-any-return]


def dtype_of(number: object) -> torch.dtype:
    """Return the dtype that `torch.tensor` gives to a number."""
    if type(number) is float:
        return torch.get_default_dtype()
    return torch.bool if type(number) is bool else torch.int64
