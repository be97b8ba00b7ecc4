"""Structure: what bound symbols do apart from the names of their tensors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.sizes import comparison_keys
from thunder_core.ir.symbol import BoundSymbol


def structural_key(bsym: BoundSymbol) -> Hashable:
    """A key that is equal for bound symbols that may stand at the same place of two equal stretches."""
    shape = (bsym.symbol.name, bsym.executor, _shape(bsym.args), _shape(dict(bsym.kwargs)), _shape(bsym.output))
    return (*shape, bsym.mutates != (), bsym.ordered)


def _shape(tree: Any) -> Hashable:
    kind = type(tree)
    if isinstance(tree, TensorProxy):
        return (comparison_keys(tree.shape), comparison_keys(tree.stride), tree.dtype, tree.device, tree.requires_grad)
    if kind is Proxy:
        return (Proxy,)
    if kind is slice:
        return (slice, _shape((tree.start, tree.stop, tree.step)))
    if isinstance(tree, tuple | list):
        return (kind, *(_shape(item) for item in tree))
    if isinstance(tree, dict):
        return (dict, *((name, _shape(value)) for name, value in tree.items()))
    return (kind, repr(tree))
