"""The lookaside of SciPy's `linear_sum_assignment`, which becomes an operation of the trace.

The program receives arrays of zeros in place of the arrays of indices. The functions that make tensors of them return
the results of the operation. If the program reads the arrays in another way, it is traced again, and SciPy's function
is called with the costs of this call, which each later call checks.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.outside.paths import ASSIGNMENT, Path
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.library.operators.assignment import linear_sum_assignment

NAME, MODULE = "linear_sum_assignment", "scipy.optimize"
UNKNOWN_TO_NUMPY = (torch.bfloat16, torch.complex32)


def assign(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record `scipy.optimize.linear_sum_assignment(cost, maximize)` of a tensor; return `NOT_TAKEN` for other calls."""
    if (
        type(function) is not types.BuiltinFunctionType
        or function.__name__ != NAME
        or run.options.reads_assignment_indices
    ):
        return NOT_TAKEN
    if function is not getattr(sys.modules.get(MODULE), NAME, None):
        return NOT_TAKEN
    cost, maximize = arguments(*args, **kwargs)
    if not is_matrix_for_numpy(cost) or type(maximize) is not bool:
        return NOT_TAKEN
    with torch._C.DisableTorchFunction():
        indices = run.recorder.function(linear_sum_assignment, (cost, maximize), {})
    return tuple(array_in_place_of(run, tensor) for tensor in indices)


def arguments(cost_matrix: object = None, maximize: object = False, *others: object, **named: object) -> Any:
    """Return the arguments of a call by SciPy's names; the costs are None if SciPy refuses the arguments."""
    return (None, False) if others or named else (cost_matrix, maximize)


def is_matrix_for_numpy(cost: Any) -> bool:
    """Whether a value is a computed matrix of real numbers that `numpy.asarray` accepts."""
    if type(cost) is not FakeTensor or cost.dim() != 2 or cost.device.type != "cpu" or cost.layout != torch.strided:
        return False
    is_plain = not (cost.requires_grad or cost.is_conj() or cost.is_neg())
    return is_plain and cost.dtype not in UNKNOWN_TO_NUMPY and not cost.dtype.is_complex


def array_in_place_of(run: TracedRun, indices: torch.Tensor) -> Any:
    """Return an array of zeros, as long as a tensor of indices. The run notices if the program reads the array."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        array = torch.zeros(hint_of(indices.shape[0]), dtype=torch.int64).numpy().copy()
    run.outside.paths[id(array)] = Path(None, ASSIGNMENT, NAME, array)
    run.outside.assignments[id(array)] = indices
    return array
