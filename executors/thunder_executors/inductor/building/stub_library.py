"""A stub library: an empty library with the name of PyTorch's own, to link kernels against.

A linker reads the symbols of all given libraries, and PyTorch's are hundreds of megabytes: a fifth of the time of a
small build. The machine code is the same either way. The kernels record PyTorch's library as needed, and their symbols
are looked up at load time, in the library that the process has loaded by then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from thunder_core.foundation.errors import CompilerFailed
from thunder_executors.inductor.building.compilers import Compilers

LIBRARY = "libtorch_cpu.so"  # has everything of PyTorch that kernels call: mathematical functions and operators
# PyTorch's libraries in Inductor's command. Kernels do not call `libtorch`, which only loads `libtorch_cpu`, and they
# get the address of the only function that they call in `libtorch_python` at run time.
LINKED = ("-ltorch", "-ltorch_cpu", "-ltorch_python")


def with_stub(command: Sequence[str], folder: Path, compilers: Compilers) -> list[str]:
    """Return a command that links kernels against an empty stub library in this folder instead of PyTorch's.

    The library is recorded as needed, although it defines no symbols. Outside Linux, and if the compiler cannot make
    such a library, the command is unchanged.
    """
    if not sys.platform.startswith("linux"):
        return [*command]
    empty = [command[0], "-shared", "-nostdlib", f"-Wl,-soname,{LIBRARY}", "-x", "c++", os.devnull, "-o", LIBRARY]
    try:
        compilers.run(empty, folder, "an empty library")
    except CompilerFailed:  # the compiler then reports its problem for the kernels, too
        return [*command]
    needed = ["-Wl,--push-state,--no-as-needed", str(folder / LIBRARY), "-Wl,--pop-state"]
    return [word for word in command if word not in LINKED] + needed
