"""What the text of prologues and epilogues calls: making objects anew, and refusing inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class Refused(Exception):  # noqa: N818 (not an error: the next specialization is asked)
    """The inputs differ from those that a program was made for; `number` is that of the guard."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def refuse(number: int) -> NoReturn:
    """End a prologue: guard `number` does not hold."""
    raise Refused(number)


def new(kind: type) -> Any:
    """An instance without any state."""
    for base in (dict, list, set, tuple):
        if issubclass(kind, base):
            return base.__new__(kind)
    return object.__new__(kind)


def fill(made: Any, *, items: Any = (), state: Mapping[str, Any] | None = None) -> None:
    """Give an instance its items (of a dict, list or set) and its attributes, past all that its class overrides."""
    if isinstance(made, dict):
        for key, value in items.items():
            _dict_base(type(made)).__setitem__(made, key, value)
    elif isinstance(made, list):
        list.extend(made, items)
    elif isinstance(made, set):
        set.update(made, items)
    for name, value in (state or {}).items():
        object.__setattr__(made, name, value)


def _dict_base(kind: type) -> type:
    """The builtin class that stores a mapping's items: OrderedDict keeps an order of its own."""
    builtin = [base for base in kind.__mro__ if base.__module__ in ("builtins", "collections") and issubclass(base, dict)]
    return builtin[0]
