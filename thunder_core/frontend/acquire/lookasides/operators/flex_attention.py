"""Flex attention: the score and mask functions that a program passes are traced once, for all scores.

PyTorch's own definition of the operator batches the functions with `torch.vmap` and computes with ordinary operations.
Eager PyTorch runs the same definition, so the results are bitwise equal to eager's, and the derivative is that of these
operations.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import sdpa_dense
from torch._higher_order_ops.utils import setup_compilation_env
from torch.nn.attention import flex_attention

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.lookasides.operators.element_functions import OperatorArguments, attention_of
from thunder_core.frontend.acquire.lookasides.operators.higher_order import higher_order
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken

PERFORMANCE_WARNING = "flex_attention_performance"  # the warning that recommends torch.compile


@higher_order("flex_attention")
def attend(
    run: TracedRun, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Interpret PyTorch's definition with autocast off, on tensors converted to autocast's dtype if autocast was on."""
    device = query.device.type
    if not torch.is_autocast_enabled(device):
        return _attend(run, query, key, value, *args, **kwargs)
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        cast = (_cast(tensor, dtype) for tensor in (query, key, value))
        return _attend(run, *cast, *args, **kwargs)


def _attend(run: TracedRun, *args: Any, **kwargs: Any) -> Any:
    """Interpret PyTorch's definition of the operator.

    If the call has no side effects, transforms or gradients, the attention is also stored in `run.notes.attentions`,
    where executors with a kernel for flex attention find it.
    """
    effects = run.outside.effects.effects
    before, start = len(effects), len(run.recorder.bound_symbols)
    results = run.machine.call(sdpa_dense, *args, **kwargs)
    call = OperatorArguments(*args[: len(OperatorArguments._fields)])
    is_plain = len(effects) == before and not kwargs and not any(args[len(OperatorArguments._fields) :])
    if is_plain and not run.recorder.levels.depth and not results[0].requires_grad:
        attention = attention_of(run, call, start)
        if attention is not None:
            run.notes.attentions[run.recorder.proxy_of(results[0]).name] = attention
    return results


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a tensor as autocast does: floating-point tensors except float64 are converted, others are returned."""
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype is not torch.float64 else tensor


@lookaside(flex_attention._warn_once)
def skip_performance_warning(run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken | None:
    """Skip the advice to compile, because the program is being compiled."""
    return None if kwargs.get("warning_id", args[0] if args else None) == PERFORMANCE_WARNING else NOT_TAKEN


@lookaside(setup_compilation_env)
def set_up_no_compilation(run: TracedRun, /) -> nullcontext[str]:
    """Leave Dynamo unchanged. Eager PyTorch sets Dynamo up to compile the operator with the backend `eager`."""
    return nullcontext("eager")
