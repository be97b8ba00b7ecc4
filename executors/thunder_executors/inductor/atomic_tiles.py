"""A fix for atomic additions in two-dimensional tiles, whose index Inductor's C++ backend transforms twice.

The index of a store in a tile depends on the inner loop variable of the tile. If several threads add to the same memory
(as in `F.fold`), Inductor 2.13 adds this variable twice: in `CppTile2DKernel.store`, and again when `index_expr` writes
the index as a vector. The kernel then adds to wrong elements, even outside of the tensor.
`tests/executors/inductor/test_atomic_tiles.py` has such a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch._inductor import config
from torch._inductor.codegen.cpp import CppTile2DKernel, CppVecKernel

store_vector: Any = CppVecKernel.store
store_tile: Any = CppTile2DKernel.store


@contextmanager
def transform_indices_once() -> Iterator[None]:
    """Make Inductor transform the index of each store once within the context."""
    with mock.patch.object(CppTile2DKernel, "store", store):
        yield


def store(kernel: Any, name: str, index: Any, value: Any, mode: str | None = None) -> None:
    """Store a value; replaces `CppTile2DKernel.store`.

    For an addition by several threads, the index is passed on unchanged, because `index_expr` transforms it.
    """
    is_shared = mode == "atomic_add" and (config.cpp.dynamic_threads or kernel.num_threads > 1)
    if is_shared and not kernel.need_vec_transpose(kernel.rename_indexing(index)):
        store_vector(kernel, name, index, value, mode)
    else:
        store_tile(kernel, name, index, value, mode)
