"""torch.utils.checkpoint: the function is traced like other functions, and its results are marked for recomputation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, noop_context_fn

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.lookasides.functions.selective_checkpoint import (
    call_within,
    policy_of,
    saved_operations,
)
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves
from thunder_core.tracing.library.backward_hooks import set_function

DETERMINISM_CHECKS = ("default", "none")  # how to check that recomputation is deterministic, as a trace always is

SIDE_EFFECT_FIX = "call the function without checkpoint, or keep the side effects out of it"
USE_REENTRANT_WARNING = (
    "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly; "
    "use_reentrant=False is recommended."
)


@lookaside(checkpoint)
def call_checkpointed(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Mark the bound symbols of the call for recomputation. PyTorch's own code runs for calls that PyTorch refuses."""
    return NOT_TAKEN if is_refused(kwargs) else _call(run, *args, **kwargs)


def _call(
    run: TracedRun,
    /,
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], Any] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    if use_reentrant is None:
        warnings.warn(USE_REENTRANT_WARNING, stacklevel=2)
    contexts = None
    if context_fn is not noop_context_fn:
        contexts, _ = run.machine.call(context_fn)
    without_grad = use_reentrant is not False and not any(_requires_grad(arg) for arg in args)
    with torch.no_grad() if without_grad else nullcontext():
        return _call_checkpointed(run, contexts, function, args, kwargs)


def _call_checkpointed(
    run: TracedRun, context: object, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function and mark its results for recomputation, except the results that a selective context saves."""
    recorder = run.recorder
    policy = policy_of(context)
    start = len(recorder.bound_symbols)
    call = partial(_call_function, run, function, args, kwargs)
    try:
        return call() if context is None or policy is not None else call_within(run, context, call)
    finally:
        indices = range(start, len(recorder.bound_symbols))
        bsyms = recorder.bound_symbols[indices.start : indices.stop]
        run.notes.checkpointed_ranges.append(indices)
        for proxy in (proxy for bsym in bsyms for proxy in bsym.defines):
            run.notes.kept_operations.pop(proxy.name, None)
        if policy is not None and torch.is_grad_enabled():
            run.notes.kept_operations.update(saved_operations(run, policy, bsyms))


def _call_function(run: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a checkpointed function. If autograd tracks its result, leave a function with side effects to eager PyTorch.

    Eager PyTorch calls such a function again in the backward pass.
    """
    start, effects = len(run.recorder.bound_symbols), _count_effects(run)
    result = run.machine.call(function, *args, **kwargs)
    if torch.is_grad_enabled() and any(map(_requires_grad, leaves(result))):
        _require_no_effects(run, effects, run.recorder.bound_symbols[start:])
    return result


def _count_effects(run: TracedRun) -> tuple[int, int]:
    """Return the numbers of the program's side effects, and of its random numbers from outside of PyTorch."""
    return len(run.outside.effects.effects), len(run.draws.paths)


def _require_no_effects(run: TracedRun, before: tuple[int, int], bsyms: Sequence[BoundSymbol]) -> None:
    """Leave a function with side effects to eager PyTorch, which repeats the effects in the backward pass."""
    added = run.outside.effects.effects[before[0] :]
    # a hook on a tensor of the program is called by the backward pass of the first call alone
    effects = [effect for effect in added if effect.function is not set_function]
    if effects:
        what = f"has side effects (`{effects[0].name}`)"
    elif len(run.draws.paths) != before[1]:
        what = "draws random numbers outside of PyTorch"
    elif writes_outside(bsyms):
        what = "writes to a tensor from outside, such as the running statistics of batch normalization"
    else:
        return
    what = f"a function under torch.utils.checkpoint {what}, which eager repeats in the backward pass"
    run.leave_to_eager(what, SIDE_EFFECT_FIX)


def writes_outside(bsyms: Sequence[BoundSymbol]) -> bool:
    """Whether bound symbols write to the memory of a tensor that none of them makes."""
    mutated = {name for bsym in bsyms for name in bsym.mutates}
    if not mutated:
        return False
    aliasing = alias_sets(bsyms)
    written = {aliasing.representative(name) for name in mutated}
    defined = {proxy.name for bsym in bsyms for proxy in bsym.defines}
    used = {proxy.name for bsym in bsyms for proxy in bsym.inputs} - defined
    return any(aliasing.representative(name) in written for name in used)


CHECKPOINT_OPTIONS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


def is_refused(kwargs: dict[str, Any]) -> bool:
    """Whether PyTorch refuses a call of `checkpoint` with these keyword arguments."""
    contexts = kwargs.get("context_fn", noop_context_fn) is not noop_context_fn
    if kwargs.get("determinism_check", "default") not in DETERMINISM_CHECKS:
        return True
    if kwargs.get("use_reentrant") is False:
        return contexts and bool(kwargs.get("debug"))
    return contexts or bool(kwargs.keys() - set(CHECKPOINT_OPTIONS)) or bool(kwargs.get("debug"))


def _requires_grad(value: object) -> bool:
    """Whether autograd tracks an argument. If it tracks no argument, the reentrant variant turns autograd off."""
    return isinstance(value, torch.Tensor) and value.requires_grad
