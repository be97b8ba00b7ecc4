"""Compiles the matrix product by the compiler and the flags of Inductor's regions."""

from __future__ import annotations

from thunder_executors.inductor.building import library
from thunder_executors.inductor.building.compilers import compilers
from thunder_executors.inductor.generate import CppKernel
from thunder_executors.packed_linear.source import ARGUMENTS, NAME, SOURCE


def build() -> bytes:
    """The shared object; raises `CompilerFailed` with what the compiler said, and `OutOfDisk`."""
    with compilers() as started:
        return library.compiled({NAME: CppKernel(ARGUMENTS, SOURCE)}, started)
