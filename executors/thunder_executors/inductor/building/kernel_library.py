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
from thunder_executors.inductor.keep import BUILDING

# Imported at its first use: it imports Inductor, which takes seconds.
BUILD = "thunder_executors.inductor.building.library:compile_function"
LIBRARY = "kernels.so"


@dataclass(frozen=True)
class KernelLibrary:
    """A shared object with a function `name` that takes `arguments`, types in C++, and is called `kernel` in `source`.

    `executor` is the executor that owns it, and `title` its words in messages.
    """

    executor: str
    title: str
    name: str
    arguments: tuple[str, ...]
    source: str

    @cached_property
    def digest(self) -> str:
        """The digest of the source."""
        return sha256(self.source.encode()).hexdigest()

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

    @property
    def function(self) -> Callable[..., Any]:
        """The function, which takes tensors where its C++ arguments are pointers."""
        kernel: Callable[..., Any] = getattr(extension(self.content), self.name)
        return kernel

    def _write(self, folder: Path) -> None:
        """Compile the shared object into a folder."""
        with BUILDING:
            build: Callable[..., bytes] = plugins.import_object(BUILD)  # type: ignore[assignment]
            (folder / LIBRARY).write_bytes(build(self.name, self.arguments, self.source))
