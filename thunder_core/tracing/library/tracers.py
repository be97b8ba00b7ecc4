"""PyTorch's own tracers and transforms: which of them is at work around a call of a compiled function.

What runs within them is not what it seems: tensors have no data, or stand for many, or are to be recorded. Kernels that
take the addresses of tensors would give wrong results there without a word.
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
    """A tracer or transform of PyTorch's: how to ask whether it is at work, its name, and the way around it."""

    is_at_work: Callable[[], bool]
    name: str
    fix: str


def _has_mode() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0 and any(torch._C._get_dispatch_mode(key) for key in MODES)


TRACERS = (
    Tracer(
        lambda: torch._C._functorch.maybe_current_level() is not None,
        "a transform of torch.func or torch.vmap",
        "transform the function before compiling it, or use thunder_core.grad, vjp and jvp",
    ),
    Tracer(
        lambda: torch._C._get_tracing_state() is not None,
        "torch.jit.trace",
        "trace the function before compiling it",
    ),
    Tracer(
        _has_mode,
        "a mode for tensors without data or for recording (FakeTensorMode, make_fx, torch.export)",
        "pass the function before compiling it",
    ),
    Tracer(
        lambda: forward_ad._current_level >= 0 and not eager_transforms.JVP_NESTING,
        "a level of forward-mode derivatives (torch.autograd.forward_ad)",
        "use thunder_core.jvp",
    ),
)


def tracer_at_work() -> Tracer | None:
    """The tracer or transform of PyTorch's that is at work in this thread, if any."""
    return next((tracer for tracer in TRACERS if tracer.is_at_work()), None)
