"""The choice of the numbers and sizes that are symbolic in a program: those that differ from call to call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from thunder_core.acquire.paths import Path
from thunder_core.symbolic_arguments import Bounds, SymbolicArgument

ARGUMENTS = ("args", "kwargs")


@dataclass(frozen=True)
class Symbolic:
    """The numbers and sizes that are symbolic: those at the paths `changing`, and of `arguments` all.

    Those at the paths of `named` are, too, in the ranges that they were given.

    With `sizes`, sizes of tensors are among them, and integers are expressions in symbols; without, numbers are known
    to the trace by their names alone. `avoid_one_hints`, `real_hints_for` and
    `oblivious` are as `capture.sizes.Sizes` has them.
    """

    changing: frozenset[str] = frozenset()
    named: Mapping[str, SymbolicArgument] = field(default_factory=dict)
    arguments: bool = False
    sizes: bool = False
    avoid_one_hints: bool = False
    real_hints_for: frozenset[str] = frozenset()
    oblivious: bool = True

    @cached_property
    def may_be(self) -> bool:
        """Whether anything may be symbolic."""
        return bool(self.changing or self.named) or self.arguments

    def includes(self, path: Path) -> bool:
        """Whether the number or size at a path is symbolic."""
        text = str(path)
        return text in self.changing or text in self.named or (self.arguments and is_argument(path))

    def range_of(self, path: Path) -> Bounds:
        """The range that a number or size was given by its name."""
        argument = self.named.get(str(path))
        return (None, None) if argument is None else (argument.lower, argument.upper)


def is_argument(path: Path) -> bool:
    """Whether a path leads to an argument, to an item of one, or to a size of such a tensor."""
    root, *steps = path.lineage()
    return root.step == "root" and root.key in ARGUMENTS and all(step.step in ("item", "size") for step in steps)


CONSTANT = Symbolic()  # nothing is symbolic
