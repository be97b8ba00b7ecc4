"""Requirements of a program: its guards and constraints as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from thunder_core.foundation.quick_objects import with_quick_init

Step = tuple[str, Any]
PlainPath = tuple[Step, ...]  # a root, and steps to items of Python's containers or entries of `__dict__`


@with_quick_init
@dataclass(frozen=True)
class StatedGuard:
    """A condition on the value at a path, or on a setting of the process; `words` describe the value at tracing.

    `plain_path` leads to the value if the value can be looked up without running the user's code; otherwise it is None.
    `guards_number` is True if the value is a number that must equal the traced number, or a tuple with such numbers.
    `guards_tuple` is True if the value is a tuple of constants, whose items are compared.
    """

    path: str
    words: str
    plain_path: PlainPath | None = None
    guards_number: bool = False
    guards_tuple: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


@dataclass(frozen=True)
class StatedConstraint:
    """A condition on symbols that a prologue checks.

    `number` is the path of the first symbol, `condition` is a Python expression, and `names` has the paths of the other
    symbols (`s1 = args[1].size(0)`). `needed` says why the condition is checked: it names a source line of the user, a
    range, or the compiler. `symbol` is the name of the first symbol, `integers` are the integers in the condition, and
    `equals` is the path of the number that the first number must equal, or empty for another condition.
    """

    number: str
    condition: str
    names: str
    needed: str
    symbol: str = ""
    integers: tuple[int, ...] = ()
    equals: str = ""
    plain_path: ClassVar[None] = None  # a constraint applies to values that the prologue computes
    guards_number: ClassVar[bool] = False  # a symbol may have other values
    guards_tuple: ClassVar[bool] = False

    @property
    def path(self) -> str:
        """The path of the first symbol."""
        return self.number

    @property
    def words(self) -> str:
        """The condition, its other symbols, and its origin."""
        names = f" with {self.names}" if self.names else ""
        return f"required {self.condition}{names}, {self.needed}"

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


Requirement = StatedGuard | StatedConstraint
