"""The key under which continuous integration stores the folder of compiled kernels."""

from __future__ import annotations

import platform
import sys
from hashlib import sha256

from thunder_cli.app import version
from thunder_core.foundation.tested_versions import installed_version
from thunder_core.tracing.extension.requirement import compiler_version, cxx_name, instruction_sets


def cache_key() -> str:
    """Return a key such as `thunder-0.1.0-torch-2.13.0-cpython-311-4be1c09d`, with all that kernels depend on.

    The last part is a digest of the processor's instruction sets and the compiler's version.
    """
    machine = (platform.machine(), *sorted(instruction_sets()), compiler_version(cxx_name()))
    digest = sha256(" ".join(machine).encode()).hexdigest()[:8]
    torch = installed_version("torch") or "none"
    triton = installed_version("triton")
    parts = ("thunder", version(), "torch", torch, *(("triton", triton) if triton else ()))
    return "-".join((*parts, sys.implementation.cache_tag or "python", digest)).replace("+", "-")
