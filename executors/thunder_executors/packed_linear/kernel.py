"""The compiled matrix products, from the cache or from the compiler, once for all processes of a machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from thunder_core.backend.cache import Key, Store
from thunder_core.backend.fusion.machine_code import extension
from thunder_core.foundation import plugins
from thunder_executors.inductor.building.machine import facts, processors
from thunder_executors.inductor.keep import BUILDING
from thunder_executors.packed_linear.product_kinds import FLOAT32, PREPACKED, ProductKind
from thunder_executors.packed_linear.source import NAME, PACK, PACK_ENTRY, source_of

EXECUTOR_NAME, PREPACKED_NAME = "packed-linear", "prepacked-linear"
# Imported at its first use: it imports Inductor, which takes seconds.
BUILD = "thunder_executors.packed_linear.build:build"
LIBRARY = "kernels.so"
PROCESSORS = ("x86-64-v3", "x86-64-v4")  # with AVX2 and FMA, or AVX-512


def missing_processor() -> str | None:
    """Return the reason why this machine's processor does not run the kernel; None if it does."""
    return None if processors()[0] in PROCESSORS else "the kernel needs a processor with AVX2 and FMA"


def library(kind: ProductKind = FLOAT32) -> bytes:
    """Return the shared object of a kind of products for this machine's class of processors.

    Raises `CompilerFailed` if it is not cached and cannot be compiled, and `OutOfDisk`.
    """
    title = f"the matrix product of packed panels {kind.words}".strip()
    entry = Store().get_or_build(key(kind), partial(_write, kind), title)
    return entry.read(LIBRARY)


def key(kind: ProductKind) -> Key:
    """Return the key of a shared object: its source, and the machine's facts except the threads."""
    machine = {name: value for name, value in facts().items() if name != "threads"}
    return Key(EXECUTOR_NAME, {"source": source_digest(kind), **machine})


def function(kind: ProductKind = FLOAT32) -> Callable[..., Any]:
    """Return the function of the shared object of a kind of products."""
    kernel: Callable[..., Any] = getattr(extension(library(kind)), NAME)
    return kernel


def pack_function() -> Callable[..., Any]:
    """Return the function of the shared object that packs weights."""
    pack: Callable[..., Any] = getattr(extension(library(PREPACKED)), PACK)
    return pack


@cache
def source_digest(kind: ProductKind) -> str:
    """Return the digest of the C++ source of a kind of products."""
    source = source_of(kind.type) + (PACK_ENTRY if kind.prepacked else "")
    return sha256(source.encode()).hexdigest()


def _write(kind: ProductKind, folder: Path) -> None:
    """Compile the shared object into a folder."""
    with BUILDING:
        build: Callable[[str], bytes] = plugins.import_object(BUILD)  # type: ignore[assignment]
        (folder / LIBRARY).write_bytes(build(kind.type))
