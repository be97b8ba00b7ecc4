"""The judge of claimed lines: it compares each line until a deadline, and continues after a wrong line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from thunder_core.backend.claiming.check import Check, Judge, checks_of
from thunder_core.backend.claiming.comparison import Difference, Float64Computation, ValueComparison
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.line_faults import line_fault
from thunder_core.workflow.fault_localization.rounding import ROUNDING, Allowance, rounding_difference
from thunder_core.workflow.fault_localization.time_limit import OUT_OF_TIME, Deadline
from thunder_core.workflow.validation.internal_check import CheckedLines, Fault, NotCompared


@dataclass
class Findings(Judge):
    """A judge that records the right and wrong lines of a trace; the evaluation continues after a wrong line."""

    trace: str
    deadline: Deadline
    allowance: Allowance = ROUNDING
    faults: list[Fault] = field(default_factory=list)
    measured: dict[Check, ValueComparison] = field(default_factory=dict)
    late: int = 0
    _reported: set[Check] = field(default_factory=set)

    def is_due(self, check: Check) -> bool:  # noqa: ARG002
        """Whether there is time to compare a call."""
        self.late += self.deadline.is_over
        return not self.deadline.is_over

    def measure(self, actual: torch.Tensor, expected: torch.Tensor, exact: Float64Computation) -> ValueComparison:
        """Return the difference in values, and whether it is more than rounding."""
        return rounding_difference(actual, expected, exact, self.allowance)

    def accept(self, check: Check, name: str, measured: ValueComparison) -> None:  # noqa: ARG002
        """Store a measurement if it uses more of the allowed error than earlier measurements of the same check."""
        if check not in self.measured or measured.used > self.measured[check].used:
            self.measured[check] = measured

    def refuse(self, check: Check, what: str, difference: Difference, name: str = "") -> None:
        """Add the first wrong result of a check to the faults."""
        if check in self._reported:
            return
        self._reported.add(check)
        phrase = Difference(f"{what} {difference.what}".strip(), difference.largest)
        claimed = check.claimed
        self.faults.append(line_fault("executor", claimed.executor, self.trace, claimed, name, phrase, check.reference))

    def lines(self) -> Iterator[CheckedLines]:
        """Yield the lines that were compared, by module and executor."""
        groups: dict[tuple[str, str], list[Check]] = {}
        for check in self.measured:
            groups.setdefault((check.claimed.module, check.claimed.executor), []).append(check)
        for (module, executor), checks in groups.items():
            worst = max(checks, key=lambda check: self.measured[check].used)
            measured = self.measured[worst]
            yield CheckedLines(
                module=module,
                executor=executor,
                trace=self.trace,
                compared=len(checks),
                line=bound_symbol_text(worst.claimed),
                error=measured.error,
                eager_error=measured.eager_error,
                allowed=measured.allowed,
            )

    def not_compared(self, checks: Sequence[Check]) -> Iterator[NotCompared]:
        """Yield the lines that were not compared, by reason."""
        counts: dict[str, int] = {OUT_OF_TIME: self.late} if self.late else {}
        for check in checks:
            if check.left_out:
                counts[check.left_out] = counts.get(check.left_out, 0) + 1
        for reason, count in counts.items():
            yield NotCompared(what=f"lines of the {self.trace}", count=count, reason=reason)


def set_judge(judge: Judge, trace: Trace) -> list[Check]:
    """Set the judge of all checks of a trace; return the checks."""
    checks = list(checks_of(trace.bound_symbols))
    for check in checks:
        check.judge = judge
    return checks
