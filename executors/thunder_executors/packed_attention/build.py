"""Compilation of attention with the compiler and flags of Inductor's regions."""

from __future__ import annotations

from thunder_executors.inductor.building import library
from thunder_executors.inductor.building.compilers import compilers
from thunder_executors.inductor.generate import CppKernel
from thunder_executors.packed_attention.source import ARGUMENTS, NAME, source_of


def build() -> bytes:
    """Return the shared object; raise `CompilerFailed` with the compiler's message, or `OutOfDisk`."""
    with compilers() as started:
        return library.compile_library({NAME: CppKernel(ARGUMENTS, source_of())}, started)
