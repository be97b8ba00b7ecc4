"""Guards on the hooks of modules."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_core.frontend.acquire.outside.guards.guard import Guard, GuardScope
from thunder_core.frontend.acquire.outside.paths import Path, namespace
from thunder_core.tracing.ir.literal import LibraryFunction
from thunder_core.tracing.library.capturing_hooks import HOOKS

NO_OTHER_HOOKS = LibraryFunction("thunder_core.tracing.library.capturing_hooks", "no_others")


@dataclass(frozen=True, eq=False)
class OfNamespace(Guard):
    """Requires a property of the `__dict__` of the object at the path."""

    @property
    def subject(self) -> Path:
        return namespace(self.path)


@dataclass(frozen=True, eq=False)
class NoHooks(OfNamespace):
    """Requires a module without hooks."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return "not (" + " or ".join(f"{subject}[{name!r}]" for name in HOOKS) + ")"

    @property
    def words(self) -> str:
        return "had no hooks"


@dataclass(frozen=True, eq=False)
class NoOtherHooks(OfNamespace):
    """Requires a module without hooks, except the hooks with which transformers collects outputs."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(NO_OTHER_HOOKS)}({subject})"

    @property
    def words(self) -> str:
        return "had only hooks that collect outputs"
