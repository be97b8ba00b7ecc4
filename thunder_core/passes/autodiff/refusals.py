"""Checks that refuse a trace whose derivative, made ahead of time, would behave differently from autograd."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import torch

from thunder_core.passes.autodiff.step import Step
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.passes.autodiff.vjp import is_differentiable_proxy
from thunder_core.tracing.analysis.aliasing import alias_sets, is_view
from thunder_core.tracing.capture.torch_facts.compiled_call import WHY_RECORDED, call_of
from thunder_core.tracing.capture.torch_facts.settings import changes_later_results
from thunder_core.tracing.capture.torch_facts.switches import switches_autocast
from thunder_core.tracing.ir.proxy import NumberProxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library import backward_hooks, saved_tensors_hooks
from thunder_core.tracing.library.objects import expect_items

# Methods that change autograd's treatment of a tensor, by their short names.
AUTOGRAD_METHODS = frozenset(
    {
        "requires_grad_",
        "detach_",
        "__set__",
        "with_data",
        "__delete__",
        "__enter__",
        "register_hook",
        "retain_grad",
        "register_post_accumulate_grad_hook",
    }
)
HOOK_FUNCTIONS = backward_hooks.NAMES | saved_tensors_hooks.NAMES
DETACHING_OPERATIONS = (torch.ops.aten.detach.default, torch.ops.aten.data.default)


def changes_autograd(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes how autograd treats a tensor, for example by a hook or `requires_grad_`."""
    return bsym.ordered and (bsym.symbol.short_name in AUTOGRAD_METHODS or bsym.symbol.name in HOOK_FUNCTIONS)


def underivable(bsym: BoundSymbol, why: str, missing_formula: BoundSymbol | None = None) -> Underivable:
    """Return the error for a bound symbol without a derivative, with its name and its line in the program.

    `missing_formula` is the bound symbol that PyTorch has no derivative formula for, if that is the reason.
    """
    where = f" at {bsym.source.filename}:{bsym.source.lineno}" if bsym.source else ""
    error = Underivable(f"`{bsym.symbol.name}`{where}: {why}")
    error.where, error.missing_formula = bsym.source, missing_formula
    return error


def require_strided(bsym: BoundSymbol, gradients: Iterable[TensorProxy | None]) -> None:
    """Raise `Underivable` if the backward of a bound symbol computes with a sparse gradient."""
    if any(gradient is not None and len(gradient.stride) != len(gradient.shape) for gradient in gradients):
        raise underivable(bsym, "its backward computes with a sparse gradient")


def require_no_compiled_call(bsyms: Iterable[BoundSymbol]) -> None:
    """Raise `Underivable` if a bound symbol calls a compiled function, whose trace is not part of this trace."""
    for bsym in bsyms:
        call = call_of(bsym)
        if call is not None and not call.in_eager:
            error = Underivable(WHY_RECORDED)
            error.where = bsym.source
            raise error


def require_no_hooks(bsyms: Iterable[BoundSymbol]) -> None:
    """Raise `Underivable` if a bound symbol registers a hook that only autograd's own nodes call."""
    for bsym in bsyms:
        if bsym.symbol.name in HOOK_FUNCTIONS:
            raise underivable(bsym, "it registers a hook, which only autograd's own nodes call")


def require_derivable(trace: Trace) -> None:
    """Raise `Underivable` for a trace with a generator, a compiled call or hooks: autograd has to record the trace."""
    if not all(isinstance(proxy, TensorProxy | NumberProxy) for proxy in trace.inputs):
        raise Underivable("it takes a random number generator")
    require_no_compiled_call(trace.bound_symbols)
    require_no_hooks(trace.bound_symbols)


def require_plain_effects(bsym: BoundSymbol, requires_grad_names: set[str]) -> None:
    """Raise `Underivable` for a bound symbol that changes autograd, autocast or the results of later operations.

    Also raises `Underivable` for a bound symbol that writes to a tensor in `requires_grad_names`.
    """
    if switches_autocast(bsym) or changes_autograd(bsym):
        raise underivable(bsym, "it changes a setting of autograd or autocast")
    if changes_later_results(bsym):
        raise underivable(bsym, "it changes the results of later operations")
    if any(name in requires_grad_names for name in bsym.mutates):
        raise underivable(bsym, "it writes to a tensor that needs a gradient")


def require_names_kept(bsym: BoundSymbol, requires_grad_names: Set[str]) -> None:
    """Raise `Underivable` if a bound symbol gives a new name to a tensor that requires a gradient, with autograd off.

    A change of the shape in place (`unsqueeze_`) does. The tensor keeps its `grad_fn`, which the new name would lose.
    """
    known = {proxy.name for proxy in bsym.inputs}
    if not requires_grad_names.isdisjoint(bsym.mutates) and any(proxy.name not in known for proxy in bsym.outputs):
        raise underivable(bsym, "it changes a tensor that needs a gradient in place, while autograd is off")


def packed_results(bsyms: Iterable[BoundSymbol]) -> set[str]:
    """Return the names of results that `expect_items` unpacks into tensors, if autograd may track one of them."""
    checks = (bsym for bsym in bsyms if bsym.symbol.target is expect_items)
    return {check.args[0].name for check in checks if any(map(is_differentiable_proxy, check.outputs))}


def require_separate_results(bsym: BoundSymbol, packed: Set[str]) -> None:
    """Raise `Underivable` for a bound symbol with differentiated inputs whose result is in `packed`.

    Such an operation runs on the values of its arguments. Its result is a single name, so a derivation would find no
    tensor that autograd tracks.
    """
    if any(proxy.name in packed for proxy in bsym.outputs):
        raise underivable(bsym, "its results depend on the values of its arguments")


def views_made_without_autograd(bsym: BoundSymbol, requires_grad_names: Set[str]) -> set[str]:
    """Return the views of tensors that require a gradient, made by a bound symbol that runs while autograd is off.

    Such a view requires a gradient and is a leaf. The gradient of a value computed from the view later, with autograd
    on, therefore stops at the view.
    """
    names = set(requires_grad_names)
    for operation in bsym.at_level("aten"):
        is_attached_view = is_view(operation) and operation.symbol.target not in DETACHING_OPERATIONS
        if is_attached_view and any(proxy.name in names for proxy in operation.inputs):
            names |= {proxy.name for proxy in operation.outputs}
    return {proxy.name for proxy in bsym.outputs if proxy.name in names} - requires_grad_names


def require_no_grad_views_unused(bsym: BoundSymbol, no_grad_views: Set[str], *, enabled: bool) -> None:
    """Raise `Underivable` if a bound symbol uses a view in `no_grad_views` while autograd is on, or writes to it."""
    used = {proxy.name for proxy in bsym.inputs} if enabled else set(bsym.mutates)
    if used & no_grad_views:
        raise underivable(bsym, "it uses a view of a tensor that needs a gradient, made while autograd was off")


def require_unwritten(steps: Sequence[Step], saved: Set[str], aliases: Iterable[Iterable[str]]) -> None:
    """Raise `Underivable` for a write to a tensor that the backward of an earlier bound symbol reads.

    Eager PyTorch reports such a write as an error in the backward. `aliases` are groups of names; the tensors of a
    group share memory before the first step.
    """
    if not any(step.bsym.mutates for step in steps):
        return
    aliasing = alias_sets((step.bsym for step in steps), aliases)
    names: set[str] = set()
    for step in steps:
        if any(aliasing.representative(name) in names for name in step.bsym.mutates):
            raise underivable(step.bsym, "it writes to a tensor that the backward reads")
        names |= {aliasing.representative(name) for name in step.reads & saved}
