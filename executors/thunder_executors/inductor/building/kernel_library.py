"""Libraries of C++ functions of an executor, compiled once for all processes of a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from thunder_core.backend.cache import Key, Store
from thunder_core.backend.fusion.machine_code import extension
from thunder_core.foundation import plugins
from thunder_executors.inductor.building.machine import facts
from thunder_executors.inductor.region_cache import BUILDING

# Imported at its first use: it imports Inductor, which takes seconds.
BUILD = "thunder_executors.inductor.building.library:compile_functions"
LIBRARY = "kernels.so"


@dataclass(frozen=True)
class KernelLibrary:
    """A shared object with functions, each with its name, the types of its arguments in C++, and its source.

    The source of a function defines the function as `kernel`, and may use the definitions in earlier sources.
    `executor` is the executor that owns the library, and `title` describes the library in messages.
    """

    executor: str
    title: str
    functions: tuple[tuple[str, tuple[str, ...], str], ...]

    @cached_property
    def digest(self) -> str:
        """The digest of the sources."""
        return sha256("".join(source for _, _, source in self.functions).encode()).hexdigest()

    @property
    def key(self) -> Key:
        """The key in the cache: the source, and the machine's facts except the number of threads."""
        machine = {name: value for name, value in facts().items() if name != "threads"}
        return Key(self.executor, {"source": self.digest, **machine})

    @property
    def content(self) -> bytes:
        """The shared object for this machine's class of processors, from the cache or the compiler.

        Raises `CompilerFailed` with the compiler's message, or `OutOfDisk`.
        """
        return Store().get_or_build(self.key, self._write, self.title).read(LIBRARY)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function as a Python callable, which takes tensors for arguments that are pointers in C++."""
        kernel: Callable[..., Any] = getattr(extension(self.content), name)
        return kernel

    def _write(self, folder: Path) -> None:
        """Compile the shared object into a folder."""
        with BUILDING:
            build: Callable[..., bytes] = plugins.import_object(BUILD)  # type: ignore[assignment]
            (folder / LIBRARY).write_bytes(build(self.functions))
