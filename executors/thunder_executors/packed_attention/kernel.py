"""The compiled attention, from the cache or from the compiler, once for all processes of a machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from thunder_core.backend.cache import Key, Store
from thunder_core.backend.fusion.machine_code import extension
from thunder_core.foundation import plugins
from thunder_executors.inductor.building.machine import facts
from thunder_executors.inductor.keep import BUILDING
from thunder_executors.packed_attention.source import NAME, source_of

EXECUTOR_NAME = "packed-attention"
# Imported at its first use: it imports Inductor, which takes seconds.
BUILD = "thunder_executors.packed_attention.build:build"
LIBRARY = "kernels.so"


def library() -> bytes:
    """Return the shared object for this machine's class of processors.

    Raises `CompilerFailed` if it is not cached and cannot be compiled, and `OutOfDisk`.
    """
    machine = {name: value for name, value in facts().items() if name != "threads"}
    key = Key(EXECUTOR_NAME, {"source": source_digest(), **machine})
    return Store().get_or_build(key, _write, "attention to packed panels of queries").read(LIBRARY)


def function() -> Callable[..., Any]:
    """Return the function of the shared object."""
    kernel: Callable[..., Any] = getattr(extension(library()), NAME)
    return kernel


@cache
def source_digest() -> str:
    """Return the digest of the C++ source."""
    return sha256(source_of().encode()).hexdigest()


def _write(folder: Path) -> None:
    """Compile the shared object into a folder."""
    with BUILDING:
        build: Callable[[], bytes] = plugins.import_object(BUILD)  # type: ignore[assignment]
        (folder / LIBRARY).write_bytes(build())
