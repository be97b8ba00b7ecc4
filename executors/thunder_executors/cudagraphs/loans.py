"""Memory of a CUDA graph that results use in place until no tensor needs it: a loan.

The tensors that a forward saves for its backward are not copied out of the graph that computes them. They have a
storage of their own over the graph's memory, so it is known when the last of them is freed: by the backward, or with
the autograd graph. Until then, the graph must not be replayed, whatever holds the tensors: a backward that has not run,
`retain_graph`, a traceback, or the user. The storage keeps the memory alive, also if the graph is dropped.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.multiprocessing import reductions
from torch.utils import dlpack

from thunder_core.tracing.library.saved_tensors_hooks import are_hooks_set

WEAK_REFERENCE: Any = reductions.StorageWeakRef
DLPACK: Any = dlpack


class Loan:
    """The memory of a result, as bytes, and a weak reference to the storage of the tensors that use it."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self._reference: Any = None
        LOANS[memory.data_ptr()] = self

    @property
    def is_in_use(self) -> bool:
        """Whether a tensor uses the memory."""
        return self._reference is not None and not self._reference.expired()

    def lend(self) -> torch.UntypedStorage:
        """Return a new storage over the memory, which keeps the memory alive."""
        storage: torch.UntypedStorage = DLPACK.from_dlpack(DLPACK.to_dlpack(self.memory)).untyped_storage()
        self._reference = WEAK_REFERENCE(storage)
        return storage


LOANS: WeakValueDictionary[int, Loan] = WeakValueDictionary()  # by the addresses of their memory


def is_lent(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in lent memory."""
    return tensor.untyped_storage().data_ptr() in LOANS


def may_lend() -> bool:
    """Whether saved tensors may be lent now. Hooks may read them on another stream, so hooks get copies."""
    return not are_hooks_set()
