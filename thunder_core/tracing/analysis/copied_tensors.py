"""Copies: operations whose result equals one of their inputs, in the same layout."""

from __future__ import annotations

from collections.abc import Callable

import torch

from thunder_core.tracing.analysis.aliasing import schema_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


def differing_copies(trace: Trace, tracked: frozenset[str]) -> frozenset[str]:
    """Return the names of copies that a reader could distinguish from the original tensors.

    These are the tensors that autograd may track (`tracked`), and all tensors if an operation reads memory by its
    offset in the storage (`as_strided`), because a copy has a storage of its own.
    """
    if any(map(reads_storage, trace.bound_symbols)):
        return frozenset(proxy.name for bsym in trace.bound_symbols for proxy in bsym.defines)
    return tracked


def reads_storage(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol has an operation that reads a tensor's storage at a given offset."""
    schemas = map(schema_of, bsym.at_level("aten"))
    return any(schema is not None and schema.name.startswith("aten::as_strided") for schema in schemas)


def copied_tensor(bsym: BoundSymbol) -> TensorProxy | None:
    """Return the input that a bound symbol copies; None if it computes something else, or if sizes are symbolic.

    The result has the metadata of the input, so its readers may read the input.
    """
    operation, *others = bsym.at_level("aten")
    source = None if others or operation.symbol.target not in SOURCES else SOURCES[operation.symbol.target](operation)
    result = bsym.output
    if source is None or not isinstance(result, TensorProxy):
        return None
    return source if has_constant_sizes(result) and source.with_name(result.name) == result else None


def has_constant_sizes(tensor: TensorProxy) -> bool:
    """Whether no size and no stride of a tensor is symbolic."""
    return all(type(extent) is int for extent in (*tensor.shape, *tensor.stride))


def source_of_clone(operation: BoundSymbol) -> TensorProxy | None:
    """Return the tensor that `clone` copies."""
    return operation.args[0] if isinstance(operation.args[0], TensorProxy) else None


def source_of_cat(operation: BoundSymbol) -> TensorProxy | None:
    """Return the only tensor of `cat` that is not empty; None if there are several."""
    tensors = [tensor for tensor in operation.args[0] if isinstance(tensor, TensorProxy)]
    if len(tensors) < len(operation.args[0]) or not all(map(has_constant_sizes, tensors)):
        return None
    filled = [tensor for tensor in tensors if 0 not in tensor.shape]
    return filled[0] if len(filled) == 1 else None


SOURCES: dict[object, Callable[[BoundSymbol], TensorProxy | None]] = {
    torch.ops.aten.clone.default: source_of_clone,
    torch.ops.aten.cat.default: source_of_cat,
}
