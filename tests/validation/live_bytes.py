"""Counts the bytes of the storages that operations allocate while a block runs."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.backend.claiming.deferred_tensor import DeferredTensor


class LiveBytes(TorchDispatchMode):
    """The bytes of the storages that operations have allocated in the block and that are still used.

    `peak` is the maximum over all operations, also of those that a deferred tensor calls to compute its values. Memory
    that one operation allocates and frees is not counted.
    """

    def __init__(self, *outside: torch.nn.Module) -> None:
        """Count no memory of the tensors of models that were made before the block (`outside`)."""
        super().__init__()
        tensors = (tensor for model in outside for tensor in (*model.parameters(), *model.buffers()))
        self._outside = {tensor.untyped_storage()._cdata for tensor in tensors}
        self.peak = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, and count its results."""
        if any(isinstance(leaf, DeferredTensor) for leaf in _pytree.tree_leaves((args, kwargs))):
            with self:  # the deferred tensor calls other operations, which are counted
                return DeferredTensor.__torch_dispatch__(func, types, args, kwargs)
        before = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in before and storage._cdata not in self._outside:
                self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    @property
    def now(self) -> int:
        """The bytes that are still used."""
        self._live = {
            key: (reference, size) for key, (reference, size) in self._live.items() if not reference.expired()
        }
        return sum(size for _, size in self._live.values())


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in a tree that have memory on a device."""
    leaves = (leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return [leaf for leaf in leaves if not isinstance(leaf, DeferredTensor) and not leaf.is_meta]
