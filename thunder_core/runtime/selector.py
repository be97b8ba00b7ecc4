"""The program to ask first, chosen by what lies at the places at which programs have been seen to differ."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from thunder_core.ir.printer import Source
from thunder_core.runtime.generate import executable
from thunder_core.runtime.keys import key_of, quick_key_of
from thunder_core.runtime.program import Place, Program

Key = Callable[[Any, tuple[Any, ...], dict[str, Any]], Hashable]
ValueKey = Callable[[Any], Hashable]
MOST_PLACES = 4
MOST_KEYS = 4096
NOWHERE = object()
ARGUMENTS = {"args": "args", "kwargs": "kwargs"}  # roots by name; the other one is the function or module itself


class Selector:
    """A guess of the program that takes a call, by one look into a dict; the program checks all of its guards.

    The key is made of what lies at a few places, by a function that is generated when one more is learned. It is one
    that is made quickly, until two programs have the same; from then on it has strides and devices of tensors too.
    """

    def __init__(self) -> None:
        self._places: dict[Place, None] = {}
        self._programs: dict[Hashable, Program] = {}
        self._key: Key | None = None
        self._value_key: ValueKey = quick_key_of

    def choose(
        self, subject: Any, args: tuple[Any, ...], kwargs: dict[str, Any], default: Program | None
    ) -> Program | None:
        """The program that took the last call with the same at all places; the default where none did."""
        return default if self._key is None else self._programs.get(self._key(subject, args, kwargs), default)

    def learn(
        self, program: Program, places: Iterable[Place], subject: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record that a program took a call which others had refused at these places."""
        further = [place for place in dict.fromkeys(places) if place not in self._places]
        further = further[: MOST_PLACES - len(self._places)]
        if further:
            self._places.update(dict.fromkeys(further))
            self._programs.clear()
            self._key = key_function(tuple(self._places), self._value_key)
        if self._key is None:
            return
        key = self._key(subject, args, kwargs)
        if self._value_key is quick_key_of and self._programs.get(key, program) is not program:
            self._value_key = key_of
            self._key = key_function(tuple(self._places), key_of)
            self._programs.clear()
            key = self._key(subject, args, kwargs)
        if len(self._programs) >= MOST_KEYS:
            self._programs.clear()
        self._programs[key] = program

    def discard(self, program: Program) -> None:
        """Remove a program that is not kept any more."""
        for key in [key for key, chosen in self._programs.items() if chosen is program]:
            del self._programs[key]


def key_function(places: tuple[Place, ...], value_key: ValueKey = quick_key_of) -> Key:
    """A generated function from a call to the key of what lies at the places; `value_key` gives that of one of them."""
    constants: dict[str, Any] = {"key_of": value_key, "item_of": item_of, "entry_of": entry_of, "NOWHERE": NOWHERE}
    names = [f"key_{number}" for number in range(len(places))]
    lines = ["def key(subject, args, kwargs):"]
    for name, place in zip(names, places, strict=True):
        lines += ["    try:", f"        {name} = key_of({expression(place, constants)})"]
        lines += ["    except Exception:", f"        {name} = NOWHERE"]
    lines.append(f"    return {', '.join(names)}")
    generated: Key = executable(Source("\n".join([*lines, ""]), constants), "key")
    return generated


def expression(place: Place, constants: dict[str, Any]) -> str:
    """The text that leads to a place, by steps that run no code of the user's."""
    (kind, root), *steps = place
    text = ARGUMENTS.get(root, "subject") if kind == "root" else constant(globals_of(root), constants)
    for count, (kind, key) in enumerate(steps):
        if count == 0 and kind == "item":  # of a tuple or dict that is no subclass
            text = f"{text}[{constant(key, constants)}]"
        else:
            text = f"{kind}_of({text}, {constant(key, constants)})"
    return text


def globals_of(module: str) -> dict[str, Any]:
    """The globals of a module; none where it has been unloaded."""
    return getattr(sys.modules.get(module), "__dict__", {})


def constant(value: Any, constants: dict[str, Any]) -> str:
    """A number or a text as it is written, and a name for all else."""
    if type(value) in (int, str):
        return repr(value)
    name = f"constant_{len(constants)}"
    constants[name] = value
    return name


def item_of(owner: Any, key: Any) -> Any:
    """An item of one of Python's own containers."""
    kind = type(owner)
    return owner[key] if kind is dict or kind is list or kind is tuple else NOWHERE


def entry_of(owner: Any, name: str) -> Any:
    """The entry of an object's `__dict__` under a name."""
    return object.__getattribute__(owner, "__dict__")[name]
