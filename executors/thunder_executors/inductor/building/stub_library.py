"""A stub library: an empty one by the name of PyTorch's own, to link kernels against.

A linker reads the names of all libraries that it is given, and PyTorch's are hundreds of megabytes: a fifth of the time
of a small build. The machine code is the same either way. The kernels name PyTorch's library as one that they need, and
their names are looked up when they are loaded, in the library that the process has loaded by then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from thunder_core.foundation.errors import CompilerFailed
from thunder_executors.inductor.building.compilers import Compilers

LIBRARY = "libtorch_cpu.so"  # has all of PyTorch that kernels call: mathematical functions and operators
LINKED = ("-ltorch", "-ltorch_cpu", "-ltorch_python")  # the first leads to the second; Python calls the third


def with_stub(command: Sequence[str], folder: Path, compilers: Compilers) -> list[str]:
    """A command that links kernels against an empty stub library in this folder instead of PyTorch's.

    The library is recorded as needed, although nothing is found in it. Outside Linux, and where the compiler makes no
    such library, the command stays as it is.
    """
    if not sys.platform.startswith("linux"):
        return [*command]
    empty = [command[0], "-shared", "-nostdlib", f"-Wl,-soname,{LIBRARY}", "-x", "c++", os.devnull, "-o", LIBRARY]
    try:
        compilers.run(empty, folder, "an empty library")
    except CompilerFailed:  # what it says of the kernels tells more
        return [*command]
    needed = ["-Wl,--push-state,--no-as-needed", str(folder / LIBRARY), "-Wl,--pop-state"]
    return [word for word in command if word not in LINKED] + needed
