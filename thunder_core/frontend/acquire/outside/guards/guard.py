"""The base class of guards, and the scope of their conditions.

Each kind of guard is a frozen dataclass with a path and the facts that tracing found at the path. A guard returns its
condition as Python source, and a description of its requirement in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.constants import bind_constant
from thunder_core.tracing.ir.literal import Scope


@dataclass
class GuardScope(Scope):
    """The scope of a prologue. `variables` maps the paths that the prologue has read to their expressions."""

    variables: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition on the value at a path.

    Two guards with equal keys have the same requirement: only the first guard is added.
    """

    path: Path

    @property
    def key(self) -> tuple[Any, ...]:
        """The class and the path of the guard, and another field if a path may have several guards of this class."""
        return (type(self), self.path)

    @property
    def subject(self) -> Path:
        """The path to the object that the condition checks, such as the `__dict__` of the object at `path`."""
        return self.path

    @property
    def other_paths(self) -> tuple[Path, ...]:
        """The other paths in the condition, which the prologue reads first."""
        return ()

    def condition(self, subject: str, scope: GuardScope) -> str:
        """Return the condition as Python source; `subject` is the expression of the subject."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """The value or fact that tracing found at the path, in words."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


def exact_type_condition(subject: str, kind: type, scope: Scope) -> str:
    """Return the condition that a subject is of exactly this class."""
    return f"type({subject}) is {bind_constant(kind, scope)}"
