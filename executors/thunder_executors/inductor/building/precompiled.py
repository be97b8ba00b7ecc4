"""The headers of all kernels, precompiled for processes that compile many kernels.

Headers take most of a small kernel's compile time. `THUNDER_PRECOMPILED_HEADERS` is the folder for the precompiled
headers. They take 150 MB for each set of flags, and the compile time of four kernels, so headers are only precompiled
if the variable is set.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from thunder_core.foundation.errors import CompilerFailed
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.tracing.extension.requirement import compiler_version
from thunder_executors.inductor.building.compilers import Compilers

VARIABLE = "THUNDER_PRECOMPILED_HEADERS"
HEADER = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdexcept>
#include <torch/csrc/inductor/cpp_prefix.h>
"""
NAME = "kernels.h"
PRECOMPILED = f"{NAME}.gch"  # next to its header, where g++ looks for it
CLANG = "clang"  # uses other names for precompiled headers
FOR_LINKING = ("-l", "-L", "-Wl", "-shared")


def with_headers(command: Sequence[str], source: Path, target: Path, compilers: Compilers) -> list[str]:
    """Return a command of g++ that uses precompiled headers, if a folder is set for them.

    Missing precompiled headers are compiled first. If the precompiled headers do not fit the flags of a command, g++
    reads the plain headers.
    """
    folder, compiler = os.environ.get(VARIABLE), command[0]
    if not folder or not (version := compiler_version(compiler)) or CLANG in version:
        return [*command]
    flags = [word for word in command[1:] if word not in ("-o", str(source), str(target))]
    flags = [word for word in flags if not word.startswith(FOR_LINKING)]
    header_folder = (
        Path(folder) / digest_of("\n".join((HEADER, compiler, version, torch.__version__, *flags)).encode())[:16]
    )
    if not (header_folder / PRECOMPILED).is_file() and not ensure_precompiled(
        compiler, flags, header_folder, compilers
    ):
        return [*command]
    return [compiler, "-include", str(header_folder / NAME), *command[1:]]


def ensure_precompiled(compiler: str, flags: Sequence[str], header_folder: Path, compilers: Compilers) -> bool:
    """Compile the headers into a folder, atomically; return whether the folder is there now."""
    try:
        header_folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=header_folder.parent) as temporary:
            new = Path(temporary) / header_folder.name
            new.mkdir()
            (new / NAME).write_text(HEADER)
            compilers.run([compiler, *flags, "-x", "c++-header", NAME, "-o", PRECOMPILED], new, "the headers")
            new.rename(header_folder)
    except (CompilerFailed, OSError):  # another process may have been faster
        return (header_folder / PRECOMPILED).is_file()
    return True
