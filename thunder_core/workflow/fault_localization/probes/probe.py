"""A probe: a call that differs slightly from the traced call, and the guard that must refuse it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from thunder_core.backend.runtime.program import Program
from thunder_core.workflow.fault_localization.probes.calls import Arguments


@dataclass(frozen=True)
class Probe:
    """A call that differs from the traced call.

    `what` is the difference in words. `arguments()` returns the arguments, and the call runs in the context `changed`.

    The guard that must refuse the call checks `path`, as guards name it, and contains `guard_text`.
    """

    what: str
    arguments: Callable[[], Arguments]
    changed: AbstractContextManager[Any] = field(default_factory=nullcontext)
    path: str = ""
    guard_text: str = ""

    def guard(self, program: Program) -> str:
        """Return the guard that must refuse this call; if the program has no such guard, the call in words."""
        fitting = [guard for guard in program.guards if guard.path == self.path]
        guard = next((guard for guard in fitting if self.guard_text in guard.words), fitting[0] if fitting else None)
        return f"a call with {self.what}" if guard is None else f"guard {guard}"
