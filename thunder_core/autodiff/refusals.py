"""What is not differentiated ahead, and why: lines whose effect autograd would notice, or could not notice any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import torch

from thunder_core.analysis.aliasing import alias_sets, is_view
from thunder_core.autodiff.step import Step
from thunder_core.autodiff.tape import Underivable
from thunder_core.capture.compiled_call import WHY_RECORDED, call_of
from thunder_core.capture.settings import is_decisive
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.lower.region import operations_of

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


def underivable(line: BoundSymbol, why: str, lacking: BoundSymbol | None = None) -> Underivable:
    """The reason why a line has no derivative, with its place; it is `lacking` if PyTorch has none of it."""
    where = f" at {line.source.filename}:{line.source.lineno}" if line.source else ""
    error = Underivable(f"`{line.symbol.name}`{where}: {why}")
    error.where, error.lacking = line.source, lacking
    return error


def require_derivable(lines: Iterable[BoundSymbol]) -> None:
    """Raise `Underivable` where a line calls a compiled function, which is not taken apart."""
    for line in lines:
        if call_of(line) is not None:
            error = Underivable(WHY_RECORDED)
            error.where = line.source
            raise error


def require_plain(line: BoundSymbol, followed: set[str]) -> None:
    """Raise `Underivable` for a line whose effect belongs to autograd, or writes to what autograd follows."""
    if "autocast" in line.symbol.short_name or line.symbol.short_name in AUTOGRAD:
        raise underivable(line, "it changes what autograd or autocast does")
    if is_decisive(line):
        raise underivable(line, "it changes what the operations after it give")
    if any(name in followed for name in line.mutates):
        raise underivable(line, "it writes to a tensor that needs a gradient")


def require_no_leaf(line: BoundSymbol, followed: set[str]) -> None:
    """Raise `Underivable` for a view of what autograd follows, made where it is off: it is a leaf of its own."""
    returned = {proxy.name for proxy in line.outputs}
    for operation in operations_of(line):
        makes = is_view(operation) and operation.symbol.target is not torch.ops.aten.detach.default
        if (
            makes
            and any(p.name in followed for p in operation.inputs)
            and any(p.name in returned for p in operation.defines)
        ):
            raise underivable(line, "it makes a view of what needs a gradient where autograd is off")


def require_unwritten(steps: Sequence[Step], saved: Set[str]) -> None:
    """Raise `Underivable` if what a line saves is written to after it: eager PyTorch complains in the backward."""
    if not any(step.line.mutates for step in steps):
        return
    known = alias_sets(step.line for step in steps)
    kept: set[str] = set()
    for step in steps:
        if any(known.representative(name) in kept for name in step.line.mutates):
            raise underivable(step.line, "it writes to a tensor that the backward reads")
        kept |= {known.representative(name) for name in step.reads & saved}
