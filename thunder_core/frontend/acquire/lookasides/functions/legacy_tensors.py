"""Legacy constructors, such as `torch.LongTensor`, of symbolic numbers and of NumPy arrays.

The C code of the constructors needs plain numbers, and it gives the tensor the memory of an array of the same dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.frontend.acquire.lookaside_table import lookaside_of_each
from thunder_core.frontend.acquire.lookasides.functions.tensors import shares_memory, tensor_of_array
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
    torch.ShortTensor: torch.int16,
    torch.CharTensor: torch.int8,
    torch.ByteTensor: torch.uint8,
    torch.BoolTensor: torch.bool,
}


@lookaside_of_each(*CONSTRUCTORS)
def legacy_tensor(constructor: Any, run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Tensor | NotTaken:
    """Return the tensor on the memory of an array, of a list with symbolic numbers, or of a symbolic shape."""
    dtype = CONSTRUCTORS[constructor] or torch.get_default_dtype()
    if shares_memory(dtype, args, kwargs):
        return tensor_of_array(run, args[0])
    if kwargs or not numbers_in(args):
        return NOT_TAKEN
    data = args[0]
    is_shape = not isinstance(data, list | tuple) or isinstance(data, torch.Size)
    shape = data if isinstance(data, torch.Size) else args
    made: torch.Tensor = (
        run.machine.call(torch.empty, shape, dtype=dtype, device="cpu")
        if is_shape
        else run.machine.call(torch.tensor, data, dtype=dtype, device="cpu")
    )
    return made
