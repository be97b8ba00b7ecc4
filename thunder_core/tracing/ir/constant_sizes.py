"""Replace the symbolic sizes of a trace by integers if the program's constraints allow only one value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from thunder_core.tracing.ir.proxy import NumberProxy, TensorProxy, with_sizes
from thunder_core.tracing.ir.sizes import is_symbolic, size_for_trace
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves, replace_leaves


def with_constant_sizes(trace: Trace) -> Trace:
    """Return the trace with integers in place of the sizes that became constant after they were recorded.

    For example, a program uses a symbolic size, and then tests whether the size is 1. The size is a symbol in the lines
    before the test, and a constant afterwards. With the replacement, patterns and kernels see the same constant in all
    lines.
    """
    recorded = (size for bsym in trace.bound_symbols for size in sizes_in((bsym.args, dict(bsym.kwargs), bsym.output)))
    if not any(isinstance(size, torch.SymInt) and not is_symbolic(size) for size in recorded):
        return trace
    bsyms = tuple(map(bsym_with_constants, trace.bound_symbols))
    return replace(trace, bound_symbols=bsyms, inputs=constants_in(trace.inputs), output=constants_in(trace.output))


def sizes_in(tree: object) -> Iterator[Any]:
    """Yield the sizes, strides and numbers of the proxies in nested arguments."""
    for leaf in leaves(tree):
        if isinstance(leaf, TensorProxy):
            yield from (*leaf.shape, *leaf.stride)
        elif isinstance(leaf, NumberProxy):
            yield leaf.value


def bsym_with_constants(bsym: BoundSymbol) -> BoundSymbol:
    """Return a bound symbol with integers in place of constant sizes, also in its subsymbols."""
    args, kwargs = replace_leaves((bsym.args, dict(bsym.kwargs)), constant_number)
    subsymbols = tuple(map(bsym_with_constants, bsym.subsymbols))
    return replace(bsym, args=args, kwargs=kwargs, output=constants_in(bsym.output), subsymbols=subsymbols)


def constants_in(tree: object) -> Any:
    """Return nested values with integers in place of the constant sizes of tensors."""
    return replace_leaves(
        tree, lambda leaf: with_sizes(leaf, size_for_trace) if isinstance(leaf, TensorProxy) else leaf
    )


def constant_number(leaf: object) -> Any:
    """Return a tensor with integers for its constant sizes, and an integer for a constant number; others unchanged."""
    if isinstance(leaf, NumberProxy) and isinstance(leaf.value, torch.SymInt) and not is_symbolic(leaf.value):
        return size_for_trace(leaf.value)
    return constants_in(leaf)
