"""Compilation of a kind of matrix products with the compiler and flags of Inductor's regions."""

from __future__ import annotations

from thunder_executors.inductor.building import library
from thunder_executors.inductor.building.compilers import compilers
from thunder_executors.inductor.generate import CppKernel
from thunder_executors.packed_linear.product_kinds import PREPACKED
from thunder_executors.packed_linear.source import ARGUMENTS, NAME, PACK, PACK_ARGUMENTS, PACK_ENTRY, source_of


def build(kind: str) -> bytes:
    """Return the shared object of a kind of products, named by its type in C++.

    Raises `CompilerFailed` with the compiler's message, or `OutOfDisk`.
    """
    with compilers() as started:
        kernels = {NAME: CppKernel(ARGUMENTS, source_of(kind))}
        if kind == PREPACKED.type:
            kernels[PACK] = CppKernel(PACK_ARGUMENTS, PACK_ENTRY)
        return library.compile_library(kernels, started)
