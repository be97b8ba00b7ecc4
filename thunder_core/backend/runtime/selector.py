"""The choice of the program to try first, by the values at the paths in which the programs differ."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from thunder_core.backend.runtime.generate import executable
from thunder_core.backend.runtime.keys import key_of, quick_key_of
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.printer import Source
from thunder_core.tracing.ir.requirement import PlainPath

Key = Callable[[Any, tuple[Any, ...], dict[str, Any]], Hashable]
ValueKey = Callable[[Any], Hashable]
MAX_PATHS = 4
MAX_KEYS = 4096
NOWHERE = object()
ARGUMENT_ROOTS = {"args": "args", "kwargs": "kwargs"}  # roots by name; the other root is the function or module itself


class Selector:
    """Guesses the program that accepts a call, by one lookup in a dict. The program still checks all of its guards.

    The key is computed from the values at a few paths, by a function that is generated again when a path is added. The
    key is cheap until two programs have the same key; from then on, it includes strides and devices of tensors. A new
    program is added under the key of the call that it was compiled for. Otherwise, a program for symbolic sizes would
    accept calls for which another program is specialized.
    """

    def __init__(self) -> None:
        self._paths: dict[PlainPath, None] = {}
        self._programs: dict[Hashable, Program] = {}
        self._key: Key | None = None
        self._value_key: ValueKey = quick_key_of
        self._compiled_for: dict[Program, dict[PlainPath, tuple[Hashable, Hashable]]] = {}

    def choose(
        self, subject: object, args: tuple[Any, ...], kwargs: dict[str, Any], default: Program | None
    ) -> Program | None:
        """Return the program that accepted the last call with the same key; `default` if there is none."""
        return default if self._key is None else self._programs.get(self._key(subject, args, kwargs), default)

    def learn(
        self,
        program: Program,
        paths: Iterable[PlainPath],
        subject: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Record that a program accepted a call after other programs had refused the call at these paths."""
        added = [path for path in dict.fromkeys(paths) if path not in self._paths]
        added = added[: MAX_PATHS - len(self._paths)]
        if added:
            self._paths.update(dict.fromkeys(added))
            self._restart(self._value_key)
        if self._key is None:
            return
        key = self._key(subject, args, kwargs)
        if self._value_key is quick_key_of and self._programs.get(key, program) is not program:
            self._restart(key_of)
            key = self._key(subject, args, kwargs)
        if len(self._programs) >= MAX_KEYS:
            self._programs.clear()
        self._programs[key] = program

    def note_compiled(self, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the values that a new program was compiled for."""
        roots = {"args": args, "kwargs": kwargs}
        guarded = {guard.plain_path for guard in program.guards if guard.plain_path is not None}
        paths = [path for path in guarded if path[0][0] == "root" and path[0][1] in roots]
        values = {path: value_at_path(path, roots[path[0][1]]) for path in paths}
        self._compiled_for[program] = {path: (quick_key_of(value), key_of(value)) for path, value in values.items()}

    def _restart(self, value_key: ValueKey) -> None:
        """Replace the key function, and add each program under the key of the call that it was compiled for."""
        self._value_key = value_key
        self._key = key_function(tuple(self._paths), value_key)
        self._programs.clear()
        for program, keys in self._compiled_for.items():
            if all(path in keys for path in self._paths):
                own = tuple(keys[path][value_key is key_of] for path in self._paths)
                self._programs.setdefault(own if len(own) > 1 else own[0], program)

    def discard(self, program: Program) -> None:
        """Remove a program that is no longer kept."""
        self._compiled_for.pop(program, None)
        for key in [key for key, chosen in self._programs.items() if chosen is program]:
            del self._programs[key]


def key_function(paths: tuple[PlainPath, ...], value_key: ValueKey = quick_key_of) -> Key:
    """Return a generated function that returns the key of a call: the keys of the values at the paths.

    `value_key` returns the key of a value.
    """
    constants: dict[str, Any] = {"key_of": value_key, "item_of": item_of, "entry_of": entry_of, "NOWHERE": NOWHERE}
    names = [f"key_{number}" for number in range(len(paths))]
    lines = ["def key(subject, args, kwargs):"]
    for name, path in zip(names, paths, strict=True):
        lines += ["    try:", f"        {name} = key_of({expression(path, constants)})"]
        lines += ["    except Exception:", f"        {name} = NOWHERE"]
    lines.append(f"    return {', '.join(names)}")
    generated: Key = executable(Source("\n".join([*lines, ""]), constants), "key")
    return generated


def value_at_path(path: PlainPath, owner: object) -> Any:
    """Return the value at a path, starting from its root; `NOWHERE` if there is none."""
    try:
        for kind, key in path[1:]:
            owner = item_of(owner, key) if kind == "item" else entry_of(owner, key)
    except Exception:
        return NOWHERE
    return owner


def expression(path: PlainPath, constants: dict[str, Any]) -> str:
    """Return the expression that reads a path without running the user's code."""
    (kind, root), *steps = path
    text = ARGUMENT_ROOTS.get(root, "subject") if kind == "root" else constant(globals_of(root), constants)
    for count, (kind, key) in enumerate(steps):
        if count == 0 and kind == "item":  # of a plain tuple or dict
            text = f"{text}[{constant(key, constants)}]"
        else:
            text = f"{kind}_of({text}, {constant(key, constants)})"
    return text


def globals_of(module: str) -> dict[str, Any]:
    """Return the globals of a module; empty if it has been unloaded."""
    return getattr(sys.modules.get(module), "__dict__", {})


def constant(value: object, constants: dict[str, Any]) -> str:
    """Return a number or string as a literal, and a name for any other value."""
    if type(value) in (int, str):
        return repr(value)
    name = f"constant_{len(constants)}"
    constants[name] = value
    return name


def item_of(owner: Any, key: object) -> Any:
    """Return an item of a built-in container; `NOWHERE` for other classes."""
    kind = type(owner)
    return owner[key] if kind is dict or kind is list or kind is tuple else NOWHERE


def entry_of(owner: object, name: str) -> Any:
    """Return the entry of an object's `__dict__` under a name."""
    return object.__getattribute__(owner, "__dict__")[name]
