"""The statements of a stored prologue that later tokens of a generation skip, as data of a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_core.foundation.storage.manifest import StoredFacts

if TYPE_CHECKING:  # this module imports PyTorch, which reading a manifest does not need
    from thunder_core.backend.runtime.prologues.stored_prologue import SkippedStatements


class FreeDimensions(StoredFacts):
    """The dimensions of a tensor with symbolic sizes, and those with symbolic strides; `tensor` is its position."""

    tensor: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class SkippedFacts(StoredFacts):
    """`SkippedStatements` as stored."""

    without_arguments: tuple[int, ...]
    tensor_checks: tuple[int, ...] = ()
    passed: str = ""
    tensors: str = ""
    given: tuple[str, ...] = ()
    symbolic_dimensions: tuple[FreeDimensions, ...] = ()

    @classmethod
    def of(cls, skipped: SkippedStatements | None) -> SkippedFacts | None:
        """Return the facts about the skipped statements of a program; None for a program that skips none."""
        if skipped is None:
            return None
        return cls(
            without_arguments=skipped.without_arguments,
            tensor_checks=skipped.tensor_checks,
            passed=skipped.passed,
            tensors=skipped.tensors,
            given=skipped.given,
            symbolic_dimensions=tuple(
                FreeDimensions(tensor=tensor, sizes=sizes, strides=strides)
                for tensor, (sizes, strides) in skipped.symbolic_dimensions.items()
            ),
        )

    def is_within(self, lines: int) -> bool:
        """Whether all numbers are numbers of statements of a prologue with so many lines."""
        return all(0 <= number < lines for number in (*self.without_arguments, *self.tensor_checks))
