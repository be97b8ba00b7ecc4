"""The headers of all kernels, compiled once for processes that compile many: most of a small kernel's time is theirs.

`THUNDER_PRECOMPILED_HEADERS` names the folder for them. They take 150 MB for each set of flags, and the time of four
kernels, so that nothing is precompiled where nobody asks for it.
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
PRECOMPILED = f"{NAME}.gch"  # beside its header, where g++ looks for it
OTHERS = "clang"  # has other names for what it precompiles
FOR_LINKING = ("-l", "-L", "-Wl", "-shared")


def with_headers(command: Sequence[str], source: Path, target: Path, compilers: Compilers) -> list[str]:
    """A command of g++ that takes the headers as they were compiled before, where a folder is named for them.

    They are compiled if they are not there. g++ reads them itself where they do not fit its flags.
    """
    folder, compiler = os.environ.get(VARIABLE), command[0]
    if not folder or not (version := compiler_version(compiler)) or OTHERS in version:
        return [*command]
    flags = [word for word in command[1:] if word not in ("-o", str(source), str(target))]
    flags = [word for word in flags if not word.startswith(FOR_LINKING)]
    place = Path(folder) / digest_of("\n".join((HEADER, compiler, version, torch.__version__, *flags)).encode())[:16]
    if not (place / PRECOMPILED).is_file() and not precompiled(compiler, flags, place, compilers):
        return [*command]
    return [compiler, "-include", str(place / NAME), *command[1:]]


def precompiled(compiler: str, flags: Sequence[str], place: Path, compilers: Compilers) -> bool:
    """Compile the headers into a folder, which is there whole or not at all; whether it is there now."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as made:
            new = Path(made) / place.name
            new.mkdir()
            (new / NAME).write_text(HEADER)
            compilers.run([compiler, *flags, "-x", "c++-header", NAME, "-o", PRECOMPILED], new, "the headers")
            new.rename(place)
    except (CompilerFailed, OSError):  # as without a folder; another process may have been faster
        return (place / PRECOMPILED).is_file()
    return True
