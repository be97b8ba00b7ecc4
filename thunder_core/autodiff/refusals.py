"""Refusals: bound symbols that are not differentiated ahead, since autograd would notice, or no longer could."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import torch

from thunder_core.analysis.aliasing import alias_sets, is_view
from thunder_core.autodiff.step import Step
from thunder_core.autodiff.tape import Underivable
from thunder_core.capture.compiled_call import WHY_RECORDED, call_of
from thunder_core.capture.settings import is_decisive
from thunder_core.capture.switches import switches_autocast
from thunder_core.ir.symbol import BoundSymbol

AUTOGRAD = frozenset(
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
DETACHING = (torch.ops.aten.detach.default, torch.ops.aten.data.default)


def concerns_autograd(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol is told to autograd, as hooks and `requires_grad_` are."""
    return bsym.ordered and bsym.symbol.short_name in AUTOGRAD


def underivable(bsym: BoundSymbol, why: str, missing_formula: BoundSymbol | None = None) -> Underivable:
    """The error for a bound symbol without a derivative, with its place, and the symbol if PyTorch has none of it."""
    where = f" at {bsym.source.filename}:{bsym.source.lineno}" if bsym.source else ""
    error = Underivable(f"`{bsym.symbol.name}`{where}: {why}")
    error.where, error.missing_formula = bsym.source, missing_formula
    return error


def require_derivable(bsyms: Iterable[BoundSymbol]) -> None:
    """Raise `Underivable` where a bound symbol calls a compiled function, which is not taken apart."""
    for bsym in bsyms:
        if call_of(bsym) is not None:
            error = Underivable(WHY_RECORDED)
            error.where = bsym.source
            raise error


def require_plain(bsym: BoundSymbol, requires_grad_names: set[str]) -> None:
    """Raise `Underivable` for a bound symbol whose effect belongs to autograd, or writes to what autograd follows."""
    if switches_autocast(bsym) or concerns_autograd(bsym):
        raise underivable(bsym, "it changes what autograd or autocast does")
    if is_decisive(bsym):
        raise underivable(bsym, "it changes what the operations after it give")
    if any(name in requires_grad_names for name in bsym.mutates):
        raise underivable(bsym, "it writes to a tensor that needs a gradient")


def views_without_autograd(bsym: BoundSymbol, requires_grad_names: Set[str]) -> set[str]:
    """The views that a bound symbol makes, where autograd is off, of what needs a gradient.

    Each needs one too, and is a leaf of its own: what is made of it where autograd is on has gradients for it alone.
    """
    names = set(requires_grad_names)
    for operation in bsym.at_level("aten"):
        follows = is_view(operation) and operation.symbol.target not in DETACHING
        if follows and any(proxy.name in names for proxy in operation.inputs):
            names |= {proxy.name for proxy in operation.outputs}
    return {proxy.name for proxy in bsym.outputs if proxy.name in names} - requires_grad_names


def require_no_leaf(bsym: BoundSymbol, leaves: Set[str], *, enabled: bool) -> None:
    """Raise `Underivable` for a bound symbol that uses such a view where autograd is on, or writes to it anywhere."""
    used = {proxy.name for proxy in bsym.inputs} if enabled else set(bsym.mutates)
    if used & leaves:
        raise underivable(bsym, "it uses a view of what needs a gradient that was made where autograd is off")


def require_unwritten(steps: Sequence[Step], saved: Set[str], aliases: Iterable[Iterable[str]]) -> None:
    """Raise `Underivable` for a write to what an earlier bound symbol saves; eager complains in the backward.

    `aliases` are the groups of names that share memory before the first step.
    """
    if not any(step.bsym.mutates for step in steps):
        return
    aliasing = alias_sets((step.bsym for step in steps), aliases)
    kept: set[str] = set()
    for step in steps:
        if any(aliasing.representative(name) in kept for name in step.bsym.mutates):
            raise underivable(step.bsym, "it writes to a tensor that the backward reads")
        kept |= {aliasing.representative(name) for name in step.reads & saved}
