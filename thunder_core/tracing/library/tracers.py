"""Detect tracers and transforms of PyTorch that are active around a call of a compiled function.

Within them, tensors may have no data, represent several tensors, or have to be recorded. Kernels that use the addresses
of tensors would silently give wrong results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._C import _TorchDispatchModeKey as ModeKey
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

MODES = (ModeKey.FAKE, ModeKey.PROXY, ModeKey.FUNCTIONAL)


@dataclass(frozen=True)
class Tracer:
    """A tracer or transform of PyTorch: the check whether it is active, its name, and a fix for the user."""

    is_active: Callable[[], bool]
    name: str
    fix: str


def _has_mode() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0 and any(torch._C._get_dispatch_mode(key) for key in MODES)


FORWARD_AD = Tracer(
    lambda: forward_ad._current_level >= 0 and not eager_transforms.JVP_NESTING,
    "a level of forward-mode derivatives (torch.autograd.forward_ad)",
    "use thunder_core.jvp",
)
TRACERS = (
    Tracer(
        lambda: torch._C._functorch.maybe_current_level() is not None,
        "a transform of torch.func or torch.vmap",
        "transform the function first and compile the result, or use thunder_core.grad, vjp and jvp",
    ),
    Tracer(
        lambda: torch._C._get_tracing_state() is not None,
        "torch.jit.trace",
        "trace the original function instead of the compiled function",
    ),
    Tracer(
        _has_mode,
        "a mode for tensors without data or for recording (FakeTensorMode, make_fx, torch.export)",
        "pass the original function instead of the compiled function",
    ),
    FORWARD_AD,
)


def active_tracer() -> Tracer | None:
    """Return the tracer or transform of PyTorch that is active in this thread, or None."""
    return next((tracer for tracer in TRACERS if tracer.is_active()), None)
