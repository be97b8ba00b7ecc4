"""The text of a program while it is written: lines, scopes, and the remaining budget."""

from collections.abc import Callable as Function
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

Choose = Function[[int, int], int]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Callable:
    """A function that a program may call: its name, its parameters and its result."""

    name: str
    positional: int
    optional: int = 0
    keywords: tuple[str, ...] = ()
    starred: bool = False
    kind: str = "function"


@dataclass(frozen=True)
class Scope:
    """The names that code may read and bind at a position, and the statements that are allowed there."""

    kind: str = "module"
    readable: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    enclosing: tuple[str, ...] = ()
    callables: tuple[Callable, ...] = ()
    classes: tuple[str, ...] = ()
    loop: bool = False
    returns: bool = False
    walrus: bool = True
    depth: int = 0

    def having(self, **changes: Any) -> "Scope":
        """Return the scope with some fields changed."""
        return replace(self, **changes)

    def deeper(self, **changes: Any) -> "Scope":
        """The scope of a block inside this scope."""
        return replace(self, depth=self.depth + 1, **changes)


@dataclass
class Source:
    """The lines written so far."""

    choose: Choose
    budget: int = 40
    indent: int = 0
    lines: list[str] = field(default_factory=list)
    fresh: int = 0

    def number(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        return self.choose(low, high)

    def pick(self, values: Sequence[Value]) -> Value:
        """Return one of the values."""
        return values[self.number(0, len(values) - 1)] if len(values) > 1 else values[0]

    def one_in(self, count: int) -> bool:
        """Return True once in this many times; shrinks to False."""
        return self.number(0, count - 1) == count - 1

    def name(self, stem: str) -> str:
        """Return a new name."""
        self.fresh += 1
        return f"{stem}{self.fresh}"

    def write(self, line: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("    " * self.indent + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write a compound statement's head; the following lines are its body."""
        self.write(head)
        self.indent += 1
        try:
            yield
        finally:
            self.indent -= 1

    def text(self) -> str:
        """The text of the program."""
        return "\n".join(self.lines) + "\n"
