"""Guards on relations between the objects at two or more paths: same object, different objects, missing key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thunder_core.frontend.acquire.outside.guards.guard import Guard, GuardScope
from thunder_core.frontend.acquire.outside.paths import Path


@dataclass(frozen=True, eq=False)
class TwoPathGuard(Guard):
    """Requires a relation between the values at `path` and `second_path`."""

    second_path: Path

    @property
    def key(self) -> tuple[Any, ...]:
        return (type(self), self.path, self.second_path)

    @property
    def other_paths(self) -> tuple[Path, ...]:
        return (self.second_path,)


@dataclass(frozen=True, eq=False)
class SameAs(TwoPathGuard):
    """Requires the same object at both paths."""

    @property
    def key(self) -> tuple[Any, ...]:
        return (SameAs, self.path)

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject} is {scope.variables[self.second_path]}"

    @property
    def words(self) -> str:
        return f"was the same object as {self.second_path}"


@dataclass(frozen=True, eq=False)
class DifferentFrom(TwoPathGuard):
    """Requires different objects at the two paths."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject} is not {scope.variables[self.second_path]}"

    @property
    def words(self) -> str:
        return f"was a different object from {self.second_path}"


@dataclass(frozen=True, eq=False)
class AllDifferent(Guard):
    """Requires pairwise different objects at `path` and the paths in `rest`.

    The objects are of one class, and the program has read their identity.
    """

    rest: tuple[Path, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return (AllDifferent, self.path)

    @property
    def other_paths(self) -> tuple[Path, ...]:
        return self.rest

    def condition(self, subject: str, scope: GuardScope) -> str:
        variables = (subject, *(scope.variables[path] for path in self.rest))
        if len(variables) == 2:
            return " is not ".join(variables)
        return f"len({{{', '.join(f'id({name})' for name in variables)}}}) == {len(variables)}"

    @property
    def words(self) -> str:
        if len(self.rest) == 1:
            return f"was a different object from {self.rest[0]}"
        return f"these were all different objects: {', '.join(map(str, (self.path, *self.rest)))}"


@dataclass(frozen=True, eq=False)
class LacksKey(TwoPathGuard):
    """Requires that the mapping at `path` lacks the key that is the object at `second_path`."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.variables[self.second_path]} not in {subject}"

    @property
    def words(self) -> str:
        return f"had no item for {self.second_path}"
