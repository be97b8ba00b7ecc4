"""torch.vmap and torch.func: their Python code is interpreted, and PyTorch decomposes the operations inside.

The lookasides here replace functorch's C functions, which enter and leave levels, and wrap and unwrap tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._functorch import predispatch
from torch._functorch.eager_transforms import (
    enable_inplace_requires_grad,
    enter_jvp_nesting,
    exit_jvp_nesting,
    grad_increment_nesting,
    jvp_increment_nesting,
)
from torch._functorch.vmap import vmap_increment_nesting
from torch.autograd import forward_ad

from thunder_core.frontend.acquire.lookaside_table import late_lookaside, lookaside, lookaside_of_each
from thunder_core.frontend.acquire.outside.namespaces import FUNCTION_TRANSFORMS
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.transform_levels import NativeContext

functorch: Any = torch._C._functorch
BATCHES = {
    predispatch._vmap_increment_nesting: predispatch._vmap_decrement_nesting,
    functorch._vmap_increment_nesting: functorch._vmap_decrement_nesting,
}
# PyTorch 2.11 has these functions only in C.
JVP_LEVELS = getattr(predispatch, "_jvp_increment_nesting", None), getattr(predispatch, "_jvp_decrement_nesting", None)
UNWRAP_FOR_GRAD = getattr(predispatch, "_unwrap_for_grad", None)
DERIVATIVES = {
    functorch._grad_increment_nesting: functorch._grad_decrement_nesting,
    **dict([JVP_LEVELS] if None not in JVP_LEVELS else []),
    functorch._jvp_increment_nesting: functorch._jvp_decrement_nesting,
    enter_jvp_nesting: exit_jvp_nesting,
}
LEAVE_FUNCTIONS = {**BATCHES, **DERIVATIVES}  # maps functions that enter a level to functions that leave it
ENTER_FUNCTIONS: dict[Callable[..., Any], Any] = {
    grad_increment_nesting: functorch._grad_increment_nesting,
    jvp_increment_nesting: enter_jvp_nesting,
    vmap_increment_nesting: functorch._vmap_increment_nesting,
}
WRAPPING_FUNCTIONS = (
    predispatch._add_batch_dim,
    functorch._add_batch_dim,
    predispatch._remove_batch_dim,
    functorch._remove_batch_dim,
    functorch._wrap_for_grad,
    *([UNWRAP_FOR_GRAD] if UNWRAP_FOR_GRAD is not None else []),
    functorch._unwrap_for_grad,
    functorch._unwrap_batched,
    forward_ad.make_dual,
    forward_ad.unpack_dual,
)


@lookaside_of_each(*LEAVE_FUNCTIONS)
def enter_level(function: Callable[..., Any], run: TracedRun, /, *args: Any) -> int:
    """Enter a level, inside which tensors are wrapped."""
    return run.recorder.levels.enter(function, args, LEAVE_FUNCTIONS[function], differentiates=function in DERIVATIVES)


@lookaside(*LEAVE_FUNCTIONS.values())
def leave_level(run: TracedRun, /) -> Any:
    """Leave a level."""
    return run.recorder.levels.leave()


@lookaside_of_each(*ENTER_FUNCTIONS)
def enter_level_in_context(function: Callable[..., Any], run: TracedRun, /, *args: Any) -> NativeContext:
    """Enter a level within a context manager of PyTorch."""
    return NativeContext(partial(enter_level, ENTER_FUNCTIONS[function], run, *args), run.recorder.levels.leave)


@late_lookaside("torch._dynamo.compiled_autograd:_disable")
@lookaside_of_each(torch.autograd.graph.disable_saved_tensors_hooks, enable_inplace_requires_grad)
def run_context_natively(function: Callable[..., Any], run: TracedRun, /, *args: Any) -> NativeContext | NotTaken:
    """Natively run the contexts with which PyTorch's transforms disable features that they do not support."""
    if function is torch.autograd.graph.disable_saved_tensors_hooks and not is_called_by_transform(run):
        return NOT_TAKEN
    context = function(*args)
    return NativeContext(context.__enter__, partial(context.__exit__, None, None, None))


def is_called_by_transform(run: TracedRun) -> bool:
    """Whether the running function belongs to a module of PyTorch's function transforms."""
    frame = run.machine.frame
    return frame is not None and dict.get(frame.globals, "__name__") in FUNCTION_TRANSFORMS


@lookaside_of_each(*WRAPPING_FUNCTIONS)
def wrap(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Wrap or unwrap the fake of a tensor from outside the level."""
    return run.recorder.levels.call(function, args, kwargs)


@lookaside_of_each(predispatch.lazy_load_decompositions, forward_ad.exit_dual_level)
def run_natively(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Natively run functions that keep PyTorch's own state of derivatives, which is not state of the program."""
    return function(*args, **kwargs)
