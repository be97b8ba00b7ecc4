"""The paths to outside objects, by the objects' identity, and the guards on the values at the paths."""

from __future__ import annotations

import types
from typing import Any

from thunder_core.frontend.acquire.outside.guards.classes import DefinesNone, OverridesNone, RegardsNone
from thunder_core.frontend.acquire.outside.guards.containers import Absent, NotStored
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.identities import AllDifferent, DifferentFrom
from thunder_core.frontend.acquire.outside.guards.objects import Misses
from thunder_core.frontend.acquire.outside.guards.tensors import HasFact, OfTensors
from thunder_core.frontend.acquire.outside.namespaces import is_loaded_module
from thunder_core.frontend.acquire.outside.paths import Path, Step
from thunder_core.tracing.ir.constants import BY_IDENTITY
from thunder_core.tracing.library.objects import is_native


class GuardedPaths:
    """Outside objects by identity, each with its path, and the guards on the values at these paths.

    `paths` maps the `id` of an object to its path. `guards` maps the key of a guard to the guard. `later_guards` has
    all guards since `note_later_reads`, even if `guards` had an equal guard before; it is None until then.
    """

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.later_guards: dict[tuple[Any, ...], Guard] | None = None
        self._created_classes: dict[int, type] = {}
        self._roots: dict[int, Path] = {}
        # By class, the paths of objects that are compared by identity.
        self._compared_by_identity: dict[type, dict[Path, None]] = {}
        # By class of a guard, the paths of its tensors.
        self._tensors_by_guard: dict[type[OfTensors], dict[Path, None]] = {}
        self._missing_names: dict[Path, dict[Any, None]] = {}
        self._stored_names: dict[type, dict[str, None]] = {}  # by class, the names that its instances store
        # By abstract class, the classes that are no subclasses.
        self._unrelated_classes: dict[type, dict[type, None]] = {}
        self._getattr_names: dict[type, dict[str, None]] = {}  # by class, the names that `__getattr__` finds

    def path_of(self, value: object) -> Path | None:
        """Return the path to an outside object; None for other objects."""
        return self.paths.get(id(value))

    def path_of_key(self, key: Any) -> Path | None:
        """Return the path to a key that the program has looked up; None if neither a path nor a name leads to the key.

        The prologue refers to a class by its name, unless the program has created the class.
        """
        path = self.paths.get(id(key))
        if path is None and issubclass(type(key), type) and not self.is_created_by_program(key):
            return self.root("class", key.__name__, key)
        return path

    def release(self) -> None:
        """Release the paths and the objects at the paths, which refer to each other."""
        for path in (*self._roots.values(), *self.paths.values()):
            path.forget_children()
        with_objects: tuple[dict[Any, Any], ...] = (self._roots, self.paths, self.guards, self._created_classes)
        for objects in with_objects:
            objects.clear()

    def root(self, step: Step, key: str, value: object) -> Path:
        """Return the root path of an object: an argument of the prologue, a class, or the globals of a module."""
        path = self._roots.get(id(value))
        if path is None:
            path = self._roots[id(value)] = Path(None, step, key, value)
            self.paths.setdefault(id(value), path)
            self.register_cells(path, value)
        return path

    def note_class(self, kind: type) -> None:
        """Note that the program has created a class, which is new at each call and therefore not guarded."""
        self._created_classes[id(kind)] = kind

    def is_created_by_program(self, kind: type) -> bool:
        """Whether the program has created a class."""
        return id(kind) in self._created_classes

    def note_class_read(self, value: object) -> None:
        """Note that the program has read the class of an object. The class of an outside object becomes a root."""
        kind = type(value)
        if id(value) in self.paths and id(kind) not in self.paths and not self.is_created_by_program(kind):
            self.root("class", kind.__name__, kind)

    def globals_root(self, namespace: dict[str, Any]) -> Path:
        """Return the root for a module's globals."""
        name = namespace.get("__name__")
        module = is_loaded_module(name, namespace)
        return self.root("globals", name if module and isinstance(name, str) else "?", namespace)

    def guard(self, guard: Guard) -> None:
        """Add a guard, unless there is already a guard with the same key."""
        self.guards.setdefault(guard.key, guard)
        if self.later_guards is not None:
            self.later_guards.setdefault(guard.key, guard)

    def register_cells(self, path: Path, function: Any) -> None:
        """Add the paths to the closure cells of an outside function."""
        closure = function.__closure__ if type(function) is types.FunctionType else None
        for index, cell in enumerate(closure or ()):
            name = function.__code__.co_freevars[index]
            self.paths.setdefault(id(cell), path.child("closure", (index, name), cell))

    def note_reference(self, reference: object, value: object) -> None:
        """Add a path to a weak reference, without a callback, that the program has created to an outside object."""
        path = self.paths.get(id(value))
        if path is not None:
            self.paths.setdefault(id(reference), path.child("reference", "", reference))

    def guard_comparison(self, left: object, right: object) -> None:
        """Guard that two outside objects are different, if the program has compared them by identity."""
        left_path, right_path = self.paths.get(id(left)), self.paths.get(id(right))
        if left_path is None or right_path is None or left_path is right_path or isinstance(left, BY_IDENTITY):
            return
        self.guard(DifferentFrom(left_path, right_path))

    def note_identity_read(self, value: object) -> None:
        """Guard that an outside object differs from the other objects whose identity the program has read.

        Objects of other classes need no such guard, because the classes are guarded.
        """
        path = self.paths.get(id(value))
        kind = type(value)
        if path is None or path in self._compared_by_identity.setdefault(kind, {}):
            return
        identified = self._compared_by_identity[kind]
        identified[path] = None
        first, *rest = identified
        if rest:
            self.guards.pop((AllDifferent, first), None)  # the new guard comes after the guards on the new object
            self.guard(AllDifferent(first, tuple(rest)))

    def guard_fact(self, value: object, query: str, answer: object) -> None:
        """Guard the answer to a query of an outside tensor or generator that is not part of its metadata."""
        path = self.paths.get(id(value))
        if path is not None:
            self.guard(HasFact(path, query, answer))

    def guard_together(self, kind: type[OfTensors], tensor: object) -> None:
        """Add an outside tensor to the guard of class `kind`, which is a single guard for several tensors."""
        path, paths = self.paths.get(id(tensor)), self._tensors_by_guard.setdefault(kind, {})
        if path is not None and path not in paths:
            paths[path] = None
            first, *rest = paths
            guard = kind(first, tuple(rest))
            self.guards.pop(guard.key, None)  # the new guard comes after the guards on the new tensor
            self.guard(guard)

    def guard_absence(self, path: Path, name: object) -> None:
        """Guard that a name is missing in the namespace at a path. All missing names of a namespace share one guard."""
        names = self._missing_names.setdefault(path, {})
        names[name] = None
        has_plain_lookup = not isinstance(path.value, dict) or type(path.value).__contains__ is dict.__contains__
        guard = (Absent if has_plain_lookup else NotStored)(path, tuple(names))
        self.guards[guard.key] = guard

    def guard_unshadowed(self, owner: Any, unbound: Any) -> None:
        """Guard that an outside object has no attribute of its own that hides a method of its class."""
        path, name = self.paths.get(id(owner)), unbound.__name__
        if path is not None and name not in vars(owner):
            self.guard_absence(path.attribute("__dict__", vars(owner)), name)

    def guard_unhidden(self, kind: type, name: str, *, is_stored: bool) -> None:
        """Guard that a class does not hide a name.

        If an instance stores the name (`is_stored`), the class has no data descriptor for the name. If `__getattr__`
        looks it up, the class does not define the name at all. Classes of C need no guard, because they do not change.
        All names of a class share one guard.
        """
        if is_native(kind) or not name.isidentifier() or self.is_created_by_program(kind):
            return
        names = (self._stored_names if is_stored else self._getattr_names).setdefault(kind, {})
        if name not in names:
            names[name] = None
            guard_class = OverridesNone if is_stored else DefinesNone
            guard = guard_class(self.root("class", kind.__name__, kind), tuple(names))
            self.guards[guard.key] = guard

    def guard_abstract(self, kind: type, candidate: type) -> None:
        """Guard that an abstract class does not regard another class as its subclass.

        All such classes share one guard of the abstract class.
        """
        candidates = self._unrelated_classes.setdefault(kind, {})
        candidates[candidate] = None
        guard = RegardsNone(self.root("class", kind.__name__, kind), tuple(candidates))
        self.guards[guard.key] = guard

    def guard_cached_value(self, function: Any) -> None:
        """Guard the cache of a function under `functools.lru_cache`, by its number of misses.

        The number increases when a new value enters the cache, and is reset when the cache is cleared.
        """
        path = self.paths.get(id(function))
        if path is not None:
            guard = Misses(path, function.cache_info().misses)
            self.guards[guard.key] = guard
