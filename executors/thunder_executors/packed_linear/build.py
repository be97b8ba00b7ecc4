"""Compilation of the matrix product with the compiler and flags of Inductor's regions."""

from __future__ import annotations

from thunder_executors.inductor.building import library
from thunder_executors.inductor.building.compilers import compilers
from thunder_executors.inductor.generate import CppKernel
from thunder_executors.packed_linear.source import ARGUMENTS, NAME, SOURCE


def build() -> bytes:
    """Return the shared object; raise `CompilerFailed` with the compiler's message, or `OutOfDisk`."""
    with compilers() as started:
        return library.compiled({NAME: CppKernel(ARGUMENTS, SOURCE)}, started)
