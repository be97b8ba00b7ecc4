"""What the program comes to by the class of an object: special methods, getters and attributes that the class has."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from thunder_core.acquire.sharp import is_users_code, is_users_file

if TYPE_CHECKING:
    from thunder_core.acquire.outside import Outside

# The attributes of what stands in a class in a function's place that lead to the function.
PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    functools.partialmethod: ("func",),
}
# Which argument of these methods of a descriptor is, or tells, the class that holds the descriptor.
DESCRIBING = {"__get__": 2, "__set__": 1, "__delete__": 1}


class Classes:
    """The user's classes as the program meets them: what it found in one is guarded, bases that hide it included.

    Only the user's own are looked into: those of the standard library and of installed packages stay as they are. A
    class that the program makes is another one at each call, and has no path.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._made: dict[int, type] = {}
        self._seen: set[tuple[int, str]] = set()
        self._of_user: dict[int, tuple[type, bool]] = {}

    def made(self, kind: type) -> None:
        """The program made a class."""
        self._made[id(kind)] = kind

    def called(self, function: types.FunctionType, arguments: tuple[Any, ...]) -> None:
        """The program calls a function, or C code does: it may lie in the class of its first argument."""
        if not arguments or self._outside.path_of(function) is not None or not is_users_code(function.__code__):
            return
        first = arguments[0]
        for kind in (type(first), first) if isinstance(first, type) else (type(first),):
            name = self._name_of(kind, function)
            if name is not None:
                self.found(kind, name)
                break
        place = DESCRIBING.get(function.__name__)
        if place is not None and len(arguments) > place:
            holder = arguments[place] if isinstance(arguments[place], type) else type(arguments[place])
            self.described(holder, first)

    def described(self, holder: type, descriptor: Any) -> None:
        """The program uses a descriptor that a class holds."""
        for base in self._bases(holder):
            for name, raw in vars(base).items():
                if raw is descriptor:
                    self.found(holder, name)
                    return

    def attribute(self, owner: Any, name: str) -> None:
        """The program read an attribute of an object that it made: what its class has under that name is guarded."""
        namespace = getattr(owner, "__dict__", None)
        if not isinstance(namespace, dict) or name not in namespace:
            self.found(type(owner), name)

    def found(self, kind: type, name: str) -> None:
        """The program found a name in a class: guard where it lies, and that no base before has it."""
        if (id(kind), name) in self._seen:
            return
        self._seen.add((id(kind), name))
        for base in kind.__mro__:
            if not self._is_users(base):
                return
            root = self._outside.root("class", base.__name__, base)
            if name in vars(base):
                self._read(root.entry(name, vars(base)[name]), vars(base)[name])
                return
            self._outside.absent(root.attribute("__dict__", vars(base)), name)

    def _read(self, path: Any, raw: Any) -> None:
        """Guard what a class holds; the functions that it consists of are known from then on."""
        if isinstance(raw, types.MemberDescriptorType | types.GetSetDescriptorType):
            return
        self._outside.read(path, raw)
        for part in PARTS.get(type(raw), ()):
            function = getattr(raw, part)
            if function is not None:
                self._outside.read(path.attribute(part, function), function)

    def _name_of(self, kind: type, function: types.FunctionType) -> str | None:
        """The name under which a class holds a function, alone or in what stands in its place."""
        bases = list(self._bases(kind))
        named = function.__name__
        for base in bases:
            if named in vars(base):
                return named if _holds(vars(base)[named], function) else None
        return next((name for base in bases for name, raw in vars(base).items() if _holds(raw, function)), None)

    def _bases(self, kind: type) -> Iterable[type]:
        """The user's own classes among a class and its bases."""
        return filter(self._is_users, kind.__mro__)

    def _is_users(self, kind: type) -> bool:
        """Whether a class is the user's own, and was there before the program."""
        known = self._of_user.get(id(kind))
        if known is None:
            module = sys.modules.get(kind.__module__) if isinstance(kind.__module__, str) else None
            known = self._of_user[id(kind)] = kind, _is_users_module(kind, module)
        return known[1] and id(kind) not in self._made


def _is_users_module(kind: type, module: Any) -> bool:
    """Whether a class was made by a Python class statement in a module of the user's."""
    if not kind.__flags__ & 1 << 9:  # a class of C
        return False
    file = getattr(module, "__file__", None)
    return is_users_file(file) if isinstance(file, str) else module is None or kind.__module__ == "__main__"


def _holds(raw: Any, function: Any) -> bool:
    """Whether what a class holds is a function or stands in its place."""
    return raw is function or any(part is function for part in _parts(raw))


def _parts(raw: Any) -> Iterator[Any]:
    return (getattr(raw, name) for name in PARTS.get(type(raw), ()))
