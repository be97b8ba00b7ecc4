"""Find operations that copy for some sizes and return a view for others, such as `contiguous`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from thunder_core.tracing.analysis.aliasing import alias_sets, shares_storage
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

COPIES = ("torch.ops.aten.clone.default", "torch.ops.aten._to_copy.default")
CLONES = ("torch.ops.aten.clone.default", "torch.Tensor.clone", "torch.clone")


def distinguishes_copies_from_views(trace: Trace) -> bool:
    """Whether a program could notice that a copy is a view for some sizes (`contiguous`, `reshape`).

    The program notices the difference if it later writes to the copy or to its original, or if it returns the copy to
    the caller, who may write to it.
    """
    copies = [bsym for bsym in trace.bound_symbols if is_view_for_some_sizes(bsym)]
    if not copies:
        return False
    aliasing = alias_sets(trace.bound_symbols, trace.aliases)
    copied = {aliasing.representative(out.name) for bsym in copies for out in bsym.outputs}
    if any(aliasing.representative(proxy.name) in copied for proxy in trace.outputs):
        return True
    for bsym in copies:
        tensors = [proxy.name for proxy in (*bsym.outputs, *bsym.inputs) if isinstance(proxy, TensorProxy)]
        for first, second in itertools.pairwise(tensors):
            aliasing.unite(first, second)
    copying, touched = set(copies), set[str]()
    for bsym in trace.bound_symbols:
        if bsym in copying:
            touched |= {aliasing.representative(out.name) for out in bsym.outputs}
        if any(aliasing.representative(name) in touched for name in bsym.mutates):
            return True
    return False


def is_view_for_some_sizes(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol returns a copy for the traced sizes that may be a view for other sizes.

    Copies that only operations inside the bound symbol read do not count, because no other code can write to them.
    """
    return bsym.symbol.name not in CLONES and any(out.name in copied_names(bsym.operations) for out in bsym.outputs)


def copied_names(operations: Iterable[BoundSymbol]) -> set[str]:
    """Return the names of the copies that aten operations make, and of their views."""
    names: set[str] = set()
    for operation in operations:
        views = shares_storage(operation) and any(proxy.name in names for proxy in operation.inputs)
        if views or is_copy(operation):
            names.update(out.name for out in operation.outputs)
    return names


def is_copy(operation: BoundSymbol) -> bool:
    """Whether an aten operation copies the elements of a tensor unchanged into new memory."""
    if operation.symbol.name not in COPIES:
        return False
    copy, original = operation.output, operation.args[0]
    return isinstance(original, TensorProxy) and (copy.dtype, copy.device) == (original.dtype, original.device)
