"""Trust: the modules that may be imported for an artifact.

Trust prevents an artifact from importing arbitrary modules. It is not a sandbox: the programs of an artifact are code
that runs at the first call. Signatures help users decide whether to run that code.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import torch

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption, ImportRefused
from thunder_core.workflow.artifact.trust.importable import LIBRARIES, is_script_or_test, may_define_constants
from thunder_core.workflow.artifact.trust.installation import stray_location

REMOTE_CODE_PREFIX = "transformers_modules."


@dataclass(frozen=True)
class Trust:
    """The modules that may be imported for an artifact: the `roots` with their submodules, libraries and plug-ins.

    A library or plug-in must be imported from an installed location; a module of the same name in the current folder is
    refused. From a library, only modules that define constants may be imported. Scripts and tests are never imported,
    unless the user names the module. A module that this process has already imported may always be used, because using
    it runs no new code.
    """

    roots: frozenset[str]

    def import_object(self, path: str) -> object:
        """Return the object at `module:qualname`; raise `ImportRefused`, before importing, for untrusted modules.

        A module that ends the process while it is imported (`sys.exit`) raises ImportError.
        """
        module = self.require(path)
        if module in sys.modules and not self.covers(module):
            return object_in_memory(path)
        with plugins.refuse_exit(f"importing {module}"):
            return plugins.import_object(path)

    def require(self, path: str) -> str:
        """Return the module of `module:qualname` without importing it; raise `ImportRefused` if it is not trusted."""
        module = path.partition(":")[0]
        if not module.partition(".")[0]:
            raise ImportError(f"{module!r} is not a module name")
        if module not in sys.modules and plugins.is_installed(module):
            self._require(path, module)
        return module

    def _require(self, path: str, module: str) -> None:
        """Raise `ImportRefused` for a module that is not trusted, or that only has the name of a library."""
        if module in self.roots or (self._names(module) and not is_script_or_test(module)):
            return
        if self.covers(module) and not self._defines_constants(module):
            raise ImportRefused(
                f"the artifact refers to {path}, and {module} is a script, a test or a tool, which no constant comes "
                "from",
                fix="do not use this artifact; if you know why it refers to that module, import the module before "
                "you load the artifact",
            )
        stray = stray_location(module.partition(".")[0]) if self.covers(module) else None
        if self.covers(module) and stray is None:
            return
        why = "is not a module of its model or of a library that it needs"
        why = why if stray is None else f"would be imported from {stray}, which is not an installed location"
        raise ImportRefused(
            f"the artifact refers to {path}, but {module} {why}",
            fix="check the module; if you trust it, import it before you load the artifact, or load the artifact with "
            f"trusted_modules=({module!r},) or --trust-module {module}",
        )

    def _defines_constants(self, module: str) -> bool:
        """Whether a trusted module may define constants; for libraries, the list `LIBRARIES` decides."""
        is_library = module.partition(".")[0] in LIBRARIES and not self._names(module)
        return may_define_constants(module) if is_library else not is_script_or_test(module)

    def covers(self, module: str) -> bool:
        """Whether a module is a root, a library or a plug-in by its name, or a submodule of one."""
        top = module.partition(".")[0]
        return self._names(module) or top in LIBRARIES or top in plugins.packages()

    def _names(self, module: str) -> bool:
        """Whether a module is one of the roots or a submodule of one."""
        parts = module.split(".")
        return any(".".join(parts[:length]) in self.roots for length in range(1, len(parts) + 1))


def object_in_memory(path: str) -> object:
    """Return the object at `module:qualname` of an imported module, without calling a module's `__getattr__`."""
    module, _, qualname = path.partition(":")
    value: object = sys.modules[module]
    for part in qualname.split(".") if qualname else ():
        plain = isinstance(value, ModuleType)  # a module may define `__getattr__`, which must not be called
        value = object.__getattribute__(value, part) if plain else getattr(value, part)
    return value


def trust_in(subject: object, trusted_modules: Iterable[str] = ()) -> Trust:
    """Return a `Trust` that allows libraries, the packages of the subject's code, and the user's trusted modules."""
    return Trust((frozenset(map(root_of, modules_of(subject))) - LIBRARIES.keys()) | named_modules(trusted_modules))


def root_of(module: str) -> str:
    """Return the package that is trusted together with a module: its top-level package.

    For a model with its own code from the Hub, this is the package of the model: transformers puts the code of all such
    models into one top-level package.
    """
    return module.rpartition(".")[0] if module.startswith(REMOTE_CODE_PREFIX) else module.partition(".")[0]


def named_modules(trusted_modules: Iterable[str]) -> frozenset[str]:
    """Return the modules that a user names; raise `BadOption` for text that cannot be a module's name."""
    names = (trusted_modules,) if isinstance(trusted_modules, str) else tuple(trusted_modules)
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise BadOption(f"{name!r} is not a module name", fix="write the name as in an import: package.module")
    return frozenset(names)


def modules_of(subject: object) -> Iterator[str]:
    """Yield the names of the modules that the classes of a model, or a function, come from."""
    if isinstance(subject, torch.nn.Module):
        kinds = {kind for module in torch.nn.Module.modules(subject) for kind in type(module).__mro__}
        yield from (kind.__module__ for kind in kinds)
        return
    yield type(subject).__module__
    if isinstance(subject, FunctionType | BuiltinFunctionType):
        yield inspect.unwrap(subject).__module__ or "builtins"
    for part in parts_of(subject):
        yield from modules_of(part)


def parts_of(subject: object) -> tuple[object, ...]:
    """Return the functions and objects inside a method or a partial function, without running the subject's code."""
    if isinstance(subject, MethodType):
        return subject.__func__, subject.__self__
    return (subject.func,) if isinstance(subject, functools.partial) else ()
