"""Compiled regions in the form that caches and artifacts store: Python code, and a library of the kernels it calls."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from types import ModuleType
from typing import Any

import torch  # noqa: F401 (the kernels use PyTorch's own library, which has to be loaded)

from thunder_core.tracing.ir.source_lines import execute_source
from thunder_core.tracing.library.deferred import deferred_function

ENTRY = "region"  # the name of the function that the text defines
SHARED_OBJECT = b"\x7fELF"  # the first bytes of a shared object
MODULE = "thunder_kernels"  # the module name of the shared objects


@dataclass(frozen=True)
class MachineCode:
    """A compiled region: the Python code `text` defines `region(...)`, which calls functions of `library`.

    `library` has the bytes of an extension module, or other bytes (kernels for a GPU), which the text reads as
    `LIBRARY`. `needs` are the instruction sets that the library uses, by their names in the operating system. Nothing
    is executed before `function` is called, so machine code from a file can be verified first.
    """

    text: str
    library: bytes
    needs: tuple[str, ...]
    conditions: tuple[str, ...] = ()  # Python expressions in the region's symbols `s0`, `s1`, ... that must hold
    choice: str = ""  # a description of the measurement that chose this code

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of that name that runs the region."""
        return self._name_function(name, self._define(name, {}))

    def function_at_first_call(self, name: str) -> Callable[..., Any]:
        """Return a function of that name that runs the region; nothing is executed or loaded before its first call."""
        namespace: dict[str, Any] = {}
        return self._name_function(name, deferred_function(ENTRY, namespace, lambda: self._define(name, namespace)))

    def _define(self, name: str, namespace: dict[str, Any]) -> Callable[..., Any]:
        """Execute the text in a namespace with the library's contents, and return the region's function."""
        is_extension = self.library.startswith(SHARED_OBJECT)
        namespace.update(vars(extension(self.library)) if is_extension else {"LIBRARY": self.library})
        label = f"{name} {sha256(self.text.encode()).hexdigest()[:12]}"
        function: Callable[..., Any] = execute_source(label, self.text, namespace, ENTRY)
        return function

    def _name_function(self, name: str, function: Any) -> Callable[..., Any]:
        """Give the region's function its name, and this machine code as an attribute (see `machine_code_of`)."""
        function.__name__ = function.__qualname__ = name
        function.machine_code = self
        run: Callable[..., Any] = function
        return run


def machine_code_of(function: object) -> MachineCode | None:
    """Return the machine code of a function that runs a region; None for any other object."""
    machine_code = getattr(function, "machine_code", None)
    return machine_code if isinstance(machine_code, MachineCode) else None


_loaded: dict[str, ModuleType] = {}  # the extension modules by the digests of their bytes


def extension(library: bytes) -> ModuleType:
    """Load verified bytes as an extension module; equal bytes are loaded once."""
    digest = sha256(library).hexdigest()
    if digest not in _loaded:
        _loaded[digest] = _import_module(_write_to_new_file(library))
    return _loaded[digest]


def _import_module(path: str) -> ModuleType:
    """Import the extension module in a file, without an entry in `sys.modules`."""
    loader = importlib.machinery.ExtensionFileLoader(MODULE, path)
    spec = importlib.machinery.ModuleSpec(MODULE, loader, origin=path)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _write_to_new_file(content: bytes) -> str:
    """Write bytes to a new file, in memory if the system supports that, and return the path of the file.

    The file stays open for the lifetime of the process. Otherwise, another file could get the same path, and the loader
    would return the library that it has already loaded from this path.
    """
    if not hasattr(os, "memfd_create"):
        descriptor, path = tempfile.mkstemp(suffix=".so")
    else:
        descriptor = os.memfd_create(MODULE, os.MFD_CLOEXEC)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return path


def machine() -> str:
    """Return the kind of machine that can load the extension modules made here: system, processor, Python version."""
    return f"{platform.system()} {platform.machine()} {sys.implementation.cache_tag}"
