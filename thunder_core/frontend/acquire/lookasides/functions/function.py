"""torch.autograd.Function: an operation with its own backward is one bound symbol."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch._functorch.autograd_function import (
    VmapInfo,
    has_overridden_vmap_rule,
    unpack_outputs,
    vmapify_autograd_function,
)
from torch.autograd.function import FunctionMeta
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.checkpoint import CheckpointFunction

from thunder_core.frontend.acquire.applied_functions import own_methods
from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.torch_facts.modes import without_functions
from thunder_core.tracing.capture.torch_facts.torch_versions import APPLY, IS_APPLIED_IN_C, applied_by_c, with_defaults
from thunder_core.tracing.capture.torch_facts.wrappers import is_wrapper, wrappers_in
from thunder_core.tracing.capture.transform_levels import wrapped_tensors
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.backward_hooks import pass_gradients

# PyTorch's classes whose backward calls functions of the program.
FUNCTIONS_CALLING_USER_CODE = (CheckpointFunction, BackwardHookFunction)


@lookaside(FunctionMeta.__init__)
def make_function(run: TracedRun, /, *args: Any, **kwargs: Any) -> None:
    """Initialize a `torch.autograd.Function` class natively.

    PyTorch numbers these classes with a counter that only PyTorch's own compilers read, so the counter is no state of
    the program.
    """
    FunctionMeta.__init__(*args, **kwargs)  # type: ignore[no-untyped-call]


@lookaside(APPLY)
def apply(run: TracedRun, kind: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Record the function as one operation if autograd tracks it, and otherwise record the operations of its forward.

    The forward of a function that is recorded as one operation runs natively at each call, where the trace calls the
    operation.
    """
    levels = run.recorder.levels
    if levels.depth or wrapped_tensors(args):
        return levels.call(class_within_levels(run, kind).apply, args, kwargs)
    if kind is BackwardHookFunction and _is_tracked(run.recorder, args):
        return _as_one_operation(run, pass_gradients, args)
    is_foreign = run.options.interprets_autograd_functions or issubclass(kind, FUNCTIONS_CALLING_USER_CODE)
    if is_foreign or not tensors_in(args) or not _is_tracked(run.recorder, args):
        return NOT_TAKEN
    return run.functions.apply(kind, args, kwargs)


def call_from_c(
    run: TracedRun, function: Callable[..., Any], kind: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a `torch.autograd.Function` that C code applies.

    In versions of PyTorch in which `apply` is Python code that calls C code, `apply` has a lookaside, which was called
    before this function.
    """
    value = apply(run, kind, *args, **kwargs) if IS_APPLIED_IN_C else NOT_TAKEN
    return _apply_to_fakes(run, function, args, kwargs) if value is NOT_TAKEN else value


def _apply_to_fakes(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a function to fakes, so that its node in autograd's graph leads to the nodes of the fakes."""
    run.before_native(function, args, kwargs)
    if wrappers_in((args, kwargs)):  # autograd tracks nothing, so this runs the operations of the forward
        return run.recorder.function(function, args, kwargs)
    tensors = run.recorder.tensors
    positional, by_name = with_defaults(function.__self__, args, kwargs)
    fakes = tuple(tensors.fake(value) if isinstance(value, torch.Tensor) else value for value in positional)
    named = {name: tensors.fake(value) if isinstance(value, torch.Tensor) else value for name, value in by_name.items()}
    with run.functions.without_autograd((*fakes, *named.values())):
        return tensors.to_real(run.machine.call_unreported(apply_returning_fakes(run, function.__self__), fakes, named))


def apply_returning_fakes(run: TracedRun, kind: Any) -> Any:
    """Return the `apply` method of an autograd function, which is C code, with a forward that returns fakes.

    The forward may return a tensor from outside that it has written to in place. PyTorch would make this real tensor,
    and not its fake, a result of the function.
    """

    class Faked(kind):  # type: ignore[misc]
        @staticmethod
        @wraps(kind.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            output = kind.forward(*args, **kwargs)
            return replace_leaves(output, partial(_fake_of_result, run))

    return applied_by_c(_named_like(Faked, kind))


def _fake_of_result(run: TracedRun, leaf: Any) -> Any:
    """Return the fake of a tensor; a tensor that wraps others already wraps fakes."""
    is_plain = isinstance(leaf, torch.Tensor) and not is_wrapper(leaf)
    return run.recorder.tensors.fake(leaf) if is_plain else leaf


def _as_one_operation(run: TracedRun, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    with without_functions():
        return run.recorder.function(function, args, {})


def class_within_levels(run: TracedRun, kind: Any) -> Any:
    """Return a class that function transforms can decompose; the operations below the transforms are recorded.

    The methods of the class are interpreted. If autograd tracks the operations below the transforms, they are one
    operation with the function's own backward.
    """

    class Lowered(kind):  # type: ignore[misc]
        generate_vmap_rule = False

        @classmethod
        def apply(cls, *args: Any, **kwargs: Any) -> Any:
            if torch._C._are_functorch_transforms_active() or not _is_tracked(run.recorder, args):
                return super().apply(*args, **kwargs)
            return run.functions.apply(kind, args, kwargs)

    if kind.generate_vmap_rule and not has_overridden_vmap_rule(kind):
        Lowered.vmap = staticmethod(partial(_vmap_of_element, run, kind))
    else:
        Lowered.generate_vmap_rule = kind.generate_vmap_rule
    for name in own_methods(kind):
        setattr(Lowered, name, staticmethod(partial(_interpret, run, getattr(kind, name))))
    return _named_like(Lowered, kind)


def _is_tracked(recorder: Any, args: tuple[Any, ...]) -> bool:
    """Whether autograd tracks operations on these tensors, or the recorded operations are being differentiated."""
    tensors = (recorder.tensors.fake(tensor) if recorder.is_used(tensor) else tensor for tensor in tensors_in(args))
    with torch._C.DisableTorchFunction():
        tracks = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return tracks or recorder.derivatives_in_progress > 0


def _interpret(run: TracedRun, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C._EnableTorchFunction():
        return run.machine.call(method, *args, **kwargs)


def _vmap_of_element(run: TracedRun, kind: Any, info: VmapInfo, in_dims: Any, *operands: Any) -> Any:
    """Apply the batching rule that PyTorch generates from the methods of a function for one element."""
    batched = _named_like(vmapify_autograd_function(kind, in_dims, info.batch_size, info.randomness), kind)
    return unpack_outputs(class_within_levels(run, batched).apply(*operands))


def _named_like(kind: Any, original: Any) -> Any:
    kind.__name__, kind.__qualname__, kind.__module__ = original.__name__, original.__qualname__, original.__module__
    return kind
