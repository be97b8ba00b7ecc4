"""Assignments to `tensor.real` and `tensor.imag`, recorded as the operations that PyTorch's setters run."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.frontend.interpreter import Machine
from thunder_core.frontend.interpreter.lookup import type_lookup
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
