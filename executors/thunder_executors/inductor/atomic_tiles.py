"""Stores that add to memory in two-dimensional tiles, whose index Inductor's C++ backend transforms twice.

In a tile, the index of a store depends on the loop variable within the tile. Where several threads add to the same
memory (`F.fold`), Inductor 2.13 adds this variable before and while it writes the index as a vector. The kernel then
adds to wrong elements, even outside of the tensor. `tests/executors/inductor/test_atomic_tiles.py` has such a program.
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
def indexed_once() -> Iterator[None]:
    """Make Inductor transform the index of each store once within the context."""
    with mock.patch.object(CppTile2DKernel, "store", store):
        yield


def store(kernel: Any, name: str, index: Any, value: Any, mode: str | None = None) -> None:
    """Store a value.

    For an addition by several threads, pass the index unchanged, because `index_expr` transforms it.
    """
    is_shared = mode == "atomic_add" and (config.cpp.dynamic_threads or kernel.num_threads > 1)
    if is_shared and not kernel.need_vec_transpose(kernel.rename_indexing(index)):
        store_vector(kernel, name, index, value, mode)
    else:
        store_tile(kernel, name, index, value, mode)
