"""Strings with tensors and symbolic numbers, whose values are read only if the program reads the string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True, eq=False)
class TextPart:
    """A part of a string: the result of `function` (`format`, `str`, `repr`) on a copy of a value."""

    function: Callable[..., str]
    arguments: tuple[Any, ...]


class SymbolicText:
    """A string of plain strings and values that are unknown at tracing; the program sees it as a `str`.

    If the program does not read the string's characters, no value is read, and the string is created again at each
    call. If the program reads them, `read` returns the string of this call and guards it, or raises an error.
    """

    def __init__(self, parts: tuple[str | TextPart, ...], read: Callable[[TextPart], str]) -> None:
        self.parts = parts
        self._read = read
        self._text: str | None = None
        self.looked_up: str | None = None  # the string of this call, while a container is about to look it up

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class that the program and C code see in `__class__`."""
        return str

    @property
    def text(self) -> str | None:
        """The string of this call if it was read, or None."""
        return self._text

    @property
    def template(self) -> str:
        """The string with dots in place of values."""
        return "".join(part if isinstance(part, str) else "..." for part in self.parts)

    def concretize(self) -> str:
        """Return the string of this call, and guard it."""
        if self._text is None:
            self._text = "".join(part if isinstance(part, str) else self._read(part) for part in self.parts)
        return self._text

    def text_for_c(self) -> str:
        """Return the string for C code: guarded, unless a container lookup is known not to find it."""
        text, self.looked_up = self.looked_up, None
        return self.concretize() if text is None else text

    def join(self, before: tuple[str | TextPart, ...], behind: tuple[str | TextPart, ...]) -> SymbolicText:
        """Return a string that consists of other parts, the parts of this string, and further parts."""
        return SymbolicText((*before, *self.parts, *behind), self._read)

    def __radd__(self, other: Any) -> Any:
        return other + self.concretize()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a string with values that are not known while tracing cannot be copied")


def _method(name: str) -> Callable[..., Any]:
    """Return a method of `str` that runs on the strings of this call."""

    def method(self: SymbolicText, *args: Any, **kwargs: Any) -> Any:
        texts = (arg.concretize() if type(arg) is SymbolicText else arg for arg in args)
        return getattr(self.concretize(), name)(*texts, **kwargs)

    return method


def without_values(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return values with dots in place of the unknown values in strings."""
    return tuple(value.template if type(value) is SymbolicText else value for value in values)


def parts_of_text(value: object) -> tuple[str | TextPart, ...] | None:
    """Return the parts of a string, symbolic or not; None for other values and for subclasses of `str`."""
    if type(value) is SymbolicText:
        return value.parts if value.text is None else (value.text,)
    return (value,) if type(value) is str else None


# The methods of `str` that do not depend on its value.
STRUCTURE = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__getnewargs__", "__sizeof__", "__doc__"}
)
for _name in vars(str).keys() - STRUCTURE:
    setattr(SymbolicText, _name, _method(_name))
