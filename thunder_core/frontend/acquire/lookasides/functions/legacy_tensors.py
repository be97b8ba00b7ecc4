"""Legacy constructors, such as `torch.LongTensor`, of symbolic numbers: their C code needs plain numbers."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.frontend.acquire.lookasides.table import lookaside_of_each
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.symbolic.numbers import numbers_in

CONSTRUCTORS: dict[Any, torch.dtype | None] = {
    torch.Tensor: None,  # the default dtype
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
}


@lookaside_of_each(*CONSTRUCTORS)
def tensor_of_numbers(constructor: Any, run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Tensor | NotTaken:
    """Return the tensor of a list with symbolic numbers, or the uninitialized tensor of a symbolic shape."""
    if kwargs or not numbers_in(args):
        return NOT_TAKEN
    dtype = CONSTRUCTORS[constructor] or torch.get_default_dtype()
    data = args[0]
    is_shape = not isinstance(data, list | tuple) or isinstance(data, torch.Size)
    shape = data if isinstance(data, torch.Size) else args
    made: torch.Tensor = (
        run.machine.call(torch.empty, shape, dtype=dtype, device="cpu")
        if is_shape
        else run.machine.call(torch.tensor, data, dtype=dtype, device="cpu")
    )
    return made
