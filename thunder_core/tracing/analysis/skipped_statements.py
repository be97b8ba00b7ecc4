"""The statements of a stored prologue that later tokens of a generation skip, as plain data of a manifest."""

from __future__ import annotations

from dataclasses import dataclass

Dimensions = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class SkippedStatements:
    """The numbers of a prologue's statements that later tokens of a generation skip.

    `without_arguments` are the reads and checks that depend on no argument of the call. `tensor_checks` are the
    statements of `TensorChecks`, which has the other members, too. An item of `symbolic_dimensions` has the position of
    a tensor, its symbolic sizes and its symbolic strides.
    """

    without_arguments: tuple[int, ...]
    tensor_checks: tuple[int, ...] = ()
    passed: str = ""
    tensors: str = ""
    given: tuple[str, ...] = ()
    symbolic_dimensions: tuple[Dimensions, ...] = ()

    def is_within(self, lines: int) -> bool:
        """Whether all numbers are numbers of statements of a prologue with so many lines."""
        return all(0 <= number < lines for number in (*self.without_arguments, *self.tensor_checks))
