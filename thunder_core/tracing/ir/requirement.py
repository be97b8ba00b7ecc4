"""Requirements of a program: its guards and constraints as plain data, without the objects that they were found on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

Step = tuple[str, Any]
Place = tuple[Step, ...]  # a root, and the items of Python's own containers and entries of `__dict__` that lead on
EQUALITY = re.compile(r"s\d+ == s\d+")


@dataclass(frozen=True)
class StatedGuard:
    """A condition on what lies at a path, or on a query about the process; `words` say what tracing found there.

    `place` has the steps to a value that can be looked up without running the user's code, and is None for other
    values. `is_of_number` says that the value is a number that has to stay equal.
    """

    path: str
    words: str
    place: Place | None = None
    is_of_number: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


@dataclass(frozen=True)
class StatedConstraint:
    """A condition on symbols that a prologue checks.

    `number` is the path of its first symbol, `condition` is Python, `names` has the paths of its other symbols
    (`s1 = args[1].size(0)`), and `needed` says who needed it: a line of the user's, a range, or the compiler.
    """

    number: str
    condition: str
    names: str
    needed: str

    @property
    def path(self) -> str:
        """The path of its first symbol."""
        return self.number

    @property
    def words(self) -> str:
        """The condition, the other symbols, and who needed it."""
        names = f" with {self.names}" if self.names else ""
        return f"had {self.condition}{names}, {self.needed}"

    @property
    def place(self) -> None:
        """No steps: a constraint is on what the prologue computes."""
        return

    @property
    def is_of_number(self) -> bool:
        """A symbol may have other values."""
        return False

    @property
    def equals(self) -> str:
        """The path of the number that its first number has to be equal to; empty where it says something else."""
        return self.names.partition(" = ")[2] if EQUALITY.fullmatch(self.condition) else ""

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


Requirement = StatedGuard | StatedConstraint
