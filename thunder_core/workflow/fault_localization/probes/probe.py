"""A probe: a call that is a little other than the traced one, and the guard that is to refuse it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from thunder_core.backend.runtime.program import Program
from thunder_core.workflow.fault_localization.probes.calls import Arguments


@dataclass(frozen=True)
class Probe:
    """A call that differs from the traced one: in words, its arguments, and what holds from these on.

    `path` is what a guard has to look at to refuse it, as guards name that, and `told` a part of what the guard says.
    """

    what: str
    arguments: Callable[[], Arguments]
    changed: AbstractContextManager[Any] = field(default_factory=nullcontext)
    path: str = ""
    told: str = ""

    def guard(self, program: Program) -> str:
        """The guard of a program that is to refuse it, or what guards should look at where there is none."""
        fitting = [guard for guard in program.guards if guard.path == self.path]
        told = next((guard for guard in fitting if self.told in guard.words), fitting[0] if fitting else None)
        return f"a call with {self.what}" if told is None else f"guard {told}"
