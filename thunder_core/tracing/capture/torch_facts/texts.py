"""Texts with tensors and symbolic numbers in them, whose values a program asks for only where it looks at the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True, eq=False)
class TextPart:
    """A part of a text: `function` (`format`, `str`, `repr`) of a copy of a value, with a format."""

    function: Callable[..., str]
    arguments: tuple[Any, ...]


class SymbolicText:
    """A text of plain texts and of values that the trace does not know; it is a `str` to the program.

    Where the program only hands it on, nothing is asked for, and it is made anew at each call. Where it looks at the
    text, `read` gives that of this call, which is guarded then, or raises.
    """

    def __init__(self, parts: tuple[str | TextPart, ...], read: Callable[[TextPart], str]) -> None:
        self.parts = parts
        self._read = read
        self._text: str | None = None
        self.looked_up: str | None = None  # the text of this call, where a container is about to be asked for it

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class that the program and C see where they ask the object for it."""
        return str

    @property
    def text(self) -> str | None:
        """The text of this call, if it was asked for."""
        return self._text

    @property
    def template(self) -> str:
        """The text with dots in place of values."""
        return "".join(part if isinstance(part, str) else "..." for part in self.parts)

    def concretize(self) -> str:
        """The text of this call, which is guarded from now on."""
        if self._text is None:
            self._text = "".join(part if isinstance(part, str) else self._read(part) for part in self.parts)
        return self._text

    def handed_over(self) -> str:
        """The text that C code gets: guarded, unless it is known to be none of the keys that it is looked up among."""
        text, self.looked_up = self.looked_up, None
        return self.concretize() if text is None else text

    def joined(self, before: tuple[str | TextPart, ...], behind: tuple[str | TextPart, ...]) -> SymbolicText:
        """The text between others."""
        return SymbolicText((*before, *self.parts, *behind), self._read)

    def __radd__(self, other: Any) -> Any:
        return other + self.concretize()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a string with values that are not known while tracing cannot be copied")


def _method(name: str) -> Callable[..., Any]:
    """A method of `str`, called with the texts of this call."""

    def method(self: SymbolicText, *args: Any, **kwargs: Any) -> Any:
        given = (arg.concretize() if type(arg) is SymbolicText else arg for arg in args)
        return getattr(self.concretize(), name)(*given, **kwargs)

    return method


def without_values(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values with dots in place of what a trace does not know of the texts among them."""
    return tuple(value.template if type(value) is SymbolicText else value for value in values)


def parts_of_text(value: Any) -> tuple[str | TextPart, ...] | None:
    """The parts of a text, symbolic or not; None for anything else, and for a text of a class of its own."""
    if type(value) is SymbolicText:
        return value.parts if value.text is None else (value.text,)
    return (value,) if type(value) is str else None


# The methods of `str` that do not depend on a text.
STRUCTURE = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__getnewargs__", "__sizeof__", "__doc__"}
)
for _name in vars(str).keys() - STRUCTURE:
    setattr(SymbolicText, _name, _method(_name))
