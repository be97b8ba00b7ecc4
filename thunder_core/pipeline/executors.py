"""Which of a recipe's executors this machine has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from thunder_core.compiler import find_executor
from thunder_core.errors import EnvironmentLacks, UnknownName
from thunder_core.lower.executor import Executor


@dataclass(frozen=True)
class Candidate:
    """An executor that a recipe names: itself, or the reason why it is left out here."""

    name: str
    executor: Executor | None
    reason: str | None


def candidates(names: Iterable[str | Executor], target: str = "") -> tuple[Candidate, ...]:
    """Each executor in the recipe's order, for this machine or a GPU of the architecture `target` (`sm_90`)."""
    return tuple(_candidate(name, target) for name in names)


def _candidate(name: str | Executor, target: str) -> Candidate:
    try:
        executor = find_executor(name)
    except EnvironmentLacks as error:
        return Candidate(str(name), None, error.what)
    except UnknownName:
        return Candidate(str(name), None, "no executor of that name is installed")
    reason = executor.missing_for(target) if target else executor.missing()
    return Candidate(executor.name, None if reason else executor, reason)
