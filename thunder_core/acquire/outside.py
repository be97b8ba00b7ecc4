"""The outside world as the program sees it: which objects it knows the way to, and what it read of them."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from thunder_core.acquire.effects import EffectLog, container_base
from thunder_core.acquire.guards import BY_IDENTITY, Guard, constant_guard, is_constant
from thunder_core.acquire.paths import MODULE_TABLES, Path


C_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)


class Outside:
    """Outside objects by identity, each with its path; every read of them becomes a guard, once.

    An object that has no path was made by the program itself (or came out of C code, from where nothing can be
    told), and reading it needs no guard.
    """

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.effects = EffectLog()
        self._roots: dict[int, Path] = {}
        self._expanded: set[int] = set()
        self._seen: set[tuple[int, str]] = set()

    # ---- finding --------------------------------------------------------------------------------------------

    def path_of(self, value: Any) -> Path | None:
        """The way to an object, if it is one of the outside."""
        return self.paths.get(id(value))

    def root(self, step: str, key: str, value: Any) -> Path:
        """A root: an argument of the prologue, a class, or the globals of a module."""
        path = self._roots.get(id(value))
        if path is None:
            path = self._roots[id(value)] = Path(None, step, key, value)
            self.paths.setdefault(id(value), path)
        return path

    def globals_root(self, namespace: dict[str, Any]) -> Path:
        """The root for a module's globals."""
        name = namespace.get("__name__")
        module = _loaded_module(name, namespace)
        return self.root("globals", name if module and isinstance(name, str) else "?", namespace)

    def guard(self, kind: str, path: Path, expected: Any = None) -> None:
        """Require the same of what lies at the path when the traces are used again."""
        self.guards.setdefault((kind, path), Guard(kind, path, expected))

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self, path: Path, value: Any) -> None:
        """The program got this value by this path: guard it, or remember the way to it."""
        if is_constant(value):
            self.guards.setdefault(("constant", path), constant_guard(path, value))
            return
        known = self.paths.get(id(value))
        if known is not None and known is not path:
            if known.parent is not None or known.step == "root":
                self.guard("same as", path, known)
                return
        if known is path:
            return
        self.paths[id(value)] = path
        if isinstance(value, BY_IDENTITY):
            self.guard("is", path, value)
        elif not isinstance(value, torch.Tensor | types.MethodType):
            self.guard("type", path, type(value))

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """The program read `owner.name`."""
        path = self.paths.get(id(owner))
        key = (id(owner), name)
        if path is None or key in self._seen or key in self.effects.touched:
            return
        self._seen.add(key)
        found = self._locate(path, owner, name, value)
        if found is not None:
            self.read(found, value)

    def _locate(self, path: Path, owner: Any, name: str, value: Any) -> Path | None:
        """Where an attribute's value lies; none when interpreted code computed it, whose own reads are known."""
        namespace = getattr(owner, "__dict__", None)
        if isinstance(namespace, dict):
            if name in namespace and namespace[name] is value:
                return path.entry(name, value)
            if isinstance(owner, torch.nn.Module):
                for table in MODULE_TABLES:
                    if name in namespace[table]:
                        return path.entry(table, namespace[table]).item(name, value)
        return self._class_attribute(path, owner, name, value)

    def _class_attribute(self, path: Path, owner: Any, name: str, value: Any) -> Path | None:
        if isinstance(owner, torch.Tensor) or isinstance(value, C_METHODS) and value.__self__ is owner:
            return None  # the metadata of tensors is guarded as a whole; methods of C classes cannot change
        for base in type(owner).__mro__:
            raw = base.__dict__.get(name)
            if raw is None and name not in base.__dict__:
                continue
            if isinstance(raw, types.FunctionType):
                self.read(self.root("class", base.__name__, base).attribute(name, raw), raw)
                return None
            if isinstance(raw, property | classmethod | staticmethod) or hasattr(type(raw), "__code__"):
                return None
            return path.attribute(name, value)
        return None if hasattr(type(owner), "__getattr__") else path.attribute(name, value)

    def missing(self, owner: Any, name: str) -> None:
        """The program found that `owner` has no attribute of that name."""
        path = self.paths.get(id(owner))
        if path is not None and (id(owner), name) not in self.effects.touched:
            self.guards.setdefault(("lacks", path, name), Guard("lacks", path, name))

    def global_variable(self, namespace: dict[str, Any], name: str, value: Any) -> None:
        """The program read a global."""
        if (id(namespace), name) in self._seen or (id(namespace), name) in self.effects.touched:
            return
        self._seen.add((id(namespace), name))
        self.read(self.globals_root(namespace).item(name, value), value)

    def item(self, container: Any, key: Any, value: Any) -> None:
        """The program read `container[key]`."""
        path = self.paths.get(id(container))
        if path is None or id(container) in self._expanded:
            return
        if isinstance(container, torch.Tensor) or not is_constant(key) or isinstance(key, slice):
            self.expand(container)
            return
        if isinstance(container, list | tuple | dict):
            index = key + len(container) if isinstance(key, int) and key < 0 and not isinstance(container, dict) else key
            if index is not key:
                self.guard("length", path, len(container))
            self.read(path.item(index, value), value)

    def expand(self, container: Any) -> None:
        """C code is about to see all of an outside container: guard its shape and read each of its items."""
        path = self.paths.get(id(container))
        if path is None or id(container) in self._expanded:
            return
        if isinstance(container, dict):
            self._expanded.add(id(container))
            self.guard("keys", path, tuple(dict.keys(container)))
            for key, item in list(dict.items(container)):
                self.read(path.item(key, item), item)
        elif isinstance(container, list | tuple):
            self._expanded.add(id(container))
            self.guard("length", path, len(container))
            for index, item in enumerate(container):
                self.read(path.item(index, item), item)
        elif isinstance(container, set | frozenset) and all(is_constant(item) for item in container):
            self._expanded.add(id(container))
            self.guard("members", path, frozenset(container))

    # ---- writing --------------------------------------------------------------------------------------------

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """The program is about to set an attribute."""
        path = self.paths.get(id(owner))
        if path is not None:
            self.effects.attribute("set", path, name, value)

    def delete_attribute(self, owner: Any, name: str) -> None:
        """The program is about to delete an attribute."""
        path = self.paths.get(id(owner))
        if path is not None:
            self.effects.attribute("delete", path, name)

    def call_mutator(self, container: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The program is about to call a method that changes an outside container."""
        path = self.paths.get(id(container))
        if path is not None and container_base(container) is not None:
            self.expand(container)
            self.effects.call(path, name, args, kwargs)

    def store_global(self, namespace: dict[str, Any], name: str, value: Any) -> None:
        """The program is about to set a global variable."""
        path = self.globals_root(namespace)
        self.effects.touched.add((id(namespace), name))
        self.effects.call(path, "__setitem__", (name, value), {})


def _loaded_module(name: Any, namespace: dict[str, Any]) -> bool:
    return isinstance(name, str) and getattr(sys.modules.get(name), "__dict__", None) is namespace
