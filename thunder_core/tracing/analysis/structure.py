"""Structural keys of bound symbols: equal keys mean equal behaviour, apart from the names of tensors."""

from __future__ import annotations

from collections.abc import Hashable
from types import EllipsisType, NoneType
from typing import Any

import torch

from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import comparison_keys
from thunder_core.tracing.ir.symbol import BoundSymbol

# Types whose equal values are equivalent for every operation.
TYPES_COMPARED_BY_VALUE = frozenset(
    {NoneType, EllipsisType, bool, int, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format}
)


def structural_key(bsym: BoundSymbol) -> Hashable:
    """Return a key that is equal for two bound symbols that differ only in the names of tensors."""
    shape = (bsym.symbol, bsym.executor, _shape(bsym.args), _shape(dict(bsym.kwargs)), _shape(bsym.output))
    return (*shape, bsym.mutates != (), bsym.ordered)


def _shape(tree: Any) -> Hashable:
    kind = type(tree)
    if isinstance(tree, TensorProxy):
        sizes = (comparison_keys(tree.shape), comparison_keys(tree.stride))
        return (*sizes, tree.dtype, tree.device, tree.requires_grad, tree.is_conj, tree.is_neg)
    if kind is Proxy:
        return (Proxy,)
    if kind is slice:
        return (slice, _shape((tree.start, tree.stop, tree.step)))
    if isinstance(tree, tuple | list):
        return (kind, *(_shape(item) for item in tree))
    if isinstance(tree, dict):
        return (dict, *((name, _shape(value)) for name, value in tree.items()))
    return (kind, repr(tree)) if isinstance(tree, Proxy) else constant_key(tree)


def constant_key(value: object) -> Hashable:
    """Return a key that is equal for equivalent constants: 1, 1.0 and True differ, and so do -0.0 and 0.0.

    Objects of other types are compared by identity, because their `repr` and their `==` may be arbitrary. A key by
    identity is valid while the object lives.
    """
    kind = type(value)
    if isinstance(value, torch.SymInt):
        return (torch.SymInt, value.node.expr)
    if kind is float or kind is complex:
        return (kind, repr(value))
    return (kind, value if kind in TYPES_COMPARED_BY_VALUE else id(value))
