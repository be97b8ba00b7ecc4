"""The choice of the numbers and sizes that are symbolic in a program: those that differ from call to call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from thunder_core.acquire.paths import Path

ARGUMENTS = ("args", "kwargs")


@dataclass(frozen=True)
class Symbolic:
    """The numbers and sizes that are symbolic: those at the paths `changing`, and of `arguments` all.

    With `sizes`, sizes of tensors are among them, and integers are expressions in symbols; without, numbers are known
    to the trace by their names alone. `avoid_one_hints`, `real_hints_for` and
    `oblivious` are as `capture.sizes.Sizes` has them.
    """

    changing: frozenset[str] = frozenset()
    arguments: bool = False
    sizes: bool = False
    avoid_one_hints: bool = False
    real_hints_for: frozenset[str] = frozenset()
    oblivious: bool = True

    @cached_property
    def may_be(self) -> bool:
        """Whether anything may be symbolic."""
        return bool(self.changing) or self.arguments

    def includes(self, path: Path) -> bool:
        """Whether the number or size at a path is symbolic."""
        return str(path) in self.changing or (self.arguments and is_argument(path))


def is_argument(path: Path) -> bool:
    """Whether a path leads to an argument, to an item of one, or to a size of such a tensor."""
    root, *steps = path.lineage()
    return root.step == "root" and root.key in ARGUMENTS and all(step.step in ("item", "size") for step in steps)


CONSTANT = Symbolic()  # nothing is symbolic
