"""Constraints of programs as they are told: which number is concerned, the condition as Python, and who needed it."""

from __future__ import annotations

import re
from dataclasses import dataclass

EQUALITY = re.compile(r"s\d+ == s\d+")


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
    def equals(self) -> str:
        """The path of the number that its first number has to be equal to; empty where it says something else."""
        return self.names.partition(" = ")[2] if EQUALITY.fullmatch(self.condition) else ""

    def __str__(self) -> str:
        names = f" with {self.names}" if self.names else ""
        return f"{self.number}: had {self.condition}{names}, {self.needed}"
