"""The ways to outside objects, by the objects' identity, and what is required of what lies there."""

from __future__ import annotations

import types
from typing import Any

from thunder_core.frontend.acquire.outside.guards import Apart, Guard
from thunder_core.frontend.acquire.outside.namespaces import is_loaded_module
from thunder_core.frontend.acquire.outside.object_guards import Absent, HasFact, Misses, NotStored
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.constants import BY_IDENTITY


class GuardedPaths:
    """Outside objects by identity, each with its path, and the guards on what lies at these paths.

    `paths` has objects by their numbers (`id`), and `guards` each guard by its key.
    """

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self._roots: dict[int, Path] = {}
        self._identified: dict[int, Any] = {}
        self._absent: dict[Path, dict[Any, None]] = {}

    def path_of(self, value: Any) -> Path | None:
        """The way to an object, if it is one of the outside."""
        return self.paths.get(id(value))

    def root(self, step: str, key: str, value: Any) -> Path:
        """A root: an argument of the prologue, a class, or the globals of a module."""
        path = self._roots.get(id(value))
        if path is None:
            path = self._roots[id(value)] = Path(None, step, key, value)
            self.paths.setdefault(id(value), path)
            self.register_cells(path, value)
        return path

    def class_of(self, value: Any) -> None:
        """The program asked for the class of an object: that of an outside one, which is guarded, is a root."""
        kind = type(value)
        if id(value) in self.paths and id(kind) not in self.paths:
            self.root("class", kind.__name__, kind)

    def globals_root(self, namespace: dict[str, Any]) -> Path:
        """The root for a module's globals."""
        name = namespace.get("__name__")
        module = is_loaded_module(name, namespace)
        return self.root("globals", name if module and isinstance(name, str) else "?", namespace)

    def guard(self, guard: Guard) -> None:
        """Require the same of what lies at the guard's path when the traces are used again."""
        self.guards.setdefault(guard.key, guard)

    def register_cells(self, path: Path, function: Any) -> None:
        """Remember the way to the closure's cells of an outside function."""
        closure = function.__closure__ if type(function) is types.FunctionType else None
        for index, cell in enumerate(closure or ()):
            name = function.__code__.co_freevars[index]
            self.paths.setdefault(id(cell), path.child("closure", (index, name), cell))

    def referenced(self, reference: Any, value: Any) -> None:
        """The program made a weak reference, without a callback, to an object."""
        path = self.paths.get(id(value))
        if path is not None:
            self.paths.setdefault(id(reference), path.child("reference", "", reference))

    def compared(self, one: Any, other: Any) -> None:
        """The program found that two objects are one, or that they are not; the first is guarded when they are read."""
        path, beside = self.paths.get(id(one)), self.paths.get(id(other))
        if path is None or beside is None or path is beside or isinstance(one, BY_IDENTITY):
            return
        self.guard(Apart(path, beside))

    def identified(self, value: Any) -> None:
        """The program took the identity of an object, and may compare it with that of any other."""
        for other in self._identified.values():
            self.compared(value, other)
        self._identified[id(value)] = value

    def asked(self, value: Any, query: str, answer: object) -> None:
        """The program asked an outside tensor, or generator, for what is no part of its metadata."""
        path = self.paths.get(id(value))
        if path is not None:
            self.guard(HasFact(path, query, answer))

    def absent(self, path: Path, name: Any) -> None:
        """The program relied on a namespace not having a name; all such names of one namespace are one guard."""
        names = self._absent.setdefault(path, {})
        names[name] = None
        plain = not isinstance(path.value, dict) or type(path.value).__contains__ is dict.__contains__
        guard = (Absent if plain else NotStored)(path, tuple(names))
        self.guards[guard.key] = guard

    def cached(self, function: Any) -> None:
        """The program got a value from the cache of `functools.lru_cache`: eager does as long as the cache is the same.

        A value enters or leaves such a cache only when another one is computed, or when all are cleared, which sets the
        count of those that were computed back.
        """
        path = self.paths.get(id(function))
        if path is not None:
            guard = Misses(path, function.cache_info().misses)
            self.guards[guard.key] = guard
