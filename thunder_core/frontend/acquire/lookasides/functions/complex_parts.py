"""Assignments to `tensor.real` and `tensor.imag`, which copy a value into a part of the tensor."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.frontend.acquire.lookasides.table import lookaside_of_each
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter import Machine
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber

PARTS = {name: getattr(torch.Tensor, name) for name in ("real", "imag")}


def is_part(kind: type, name: str) -> bool:
    """Whether an attribute of a class of tensors is PyTorch's own `real` or `imag`."""
    return name in PARTS and type_lookup(kind, name) is PARTS[name]


def is_value_of_part(value: object) -> bool:
    """Whether PyTorch accepts a value for a part. It raises an error for all others."""
    return isinstance(value, torch.Tensor | int | float | complex | SymbolicNumber)


def write_part(machine: Machine, tensor: Any, name: str, value: Any) -> None:
    """Record an assignment to a part of a tensor as the operations that PyTorch's setter runs in C++."""
    part = machine.call(PARTS[name].__get__, tensor)
    if not isinstance(value, torch.Tensor):
        value = machine.call(torch.scalar_tensor, value, dtype=part.dtype, device=part.device)
    machine.call(torch.Tensor.copy_, part, value)


@lookaside_of_each(*(part.__set__ for part in PARTS.values()))
def set_part(function: Any, run: TracedRun, /, *args: Any) -> NotTaken | None:
    """Record a call of the setter of `real` or `imag`, which PyTorch's modes do not see, as an assignment."""
    if len(args) != 2 or not is_value_of_part(args[1]):
        return NOT_TAKEN
    write_part(run.machine, args[0], function.__self__.__name__, args[1])
    return None
