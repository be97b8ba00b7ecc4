"""The results of the internal check of a program, which compares its lines with eager PyTorch, as plain data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from thunder_core.workflow.validation.report_facts import ReportFacts

FaultKind = Literal[
    "executor",
    "transform",
    "differentiation",
    "acquisition",
    "unpacking",
    "guard",
    "epilogue",
    "nondeterminism",
    "stored",
]
CHECK_TEXTS: dict[str, str] = {
    "executor": "the executor {by} computes a different result from eager PyTorch",
    "transform": "the transform {by} changed the result",
    "differentiation": "its derivative differs from autograd's",
    "acquisition": "the trace differs from the calls of the program",
    "unpacking": "the prologue unpacks a different value than its origin names",
    "guard": "the guards accept inputs that the program does not support",
    "epilogue": "the epilogue returns a different value from the program's",
    "nondeterminism": "its result differs from run to run",
    "stored": "the stored program computes a different result than the program that {by} compiles now",
}


class TensorFacts(ReportFacts):
    """A tensor that a line reads or makes: its name in the trace, and its metadata."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements."""


class Fault(ReportFacts):
    """A wrong line of a program: its source line, the cause (an executor or transform), and the size of the error."""

    kind: FaultKind
    by: str
    """The executor or the transform."""
    trace: str
    """`computation`, `backward`, `prologue` or `epilogue`."""
    line: str
    """The bound symbol as the trace prints it."""
    operations: tuple[str, ...] = ()
    result: str = ""
    """The name of the result that differs."""
    difference: str
    """The difference in words: `is 0.928571 at [3], and 0.905148 in eager PyTorch`."""
    error: float = 0.0
    """The largest absolute error compared with float64, or with eager PyTorch if there is no float64 result."""
    eager_error: float = 0.0
    """The largest absolute error of eager PyTorch."""
    allowed: float = 0.0
    """The largest absolute error that rounding explains."""
    module: str = ""
    """The path of the line's module in the model."""
    source: str = ""
    """The source line: `FILE:LINE, in FUNCTION`."""
    inputs: tuple[TensorFacts, ...] = ()

    @property
    def reason(self) -> str:
        """The reason why the line is wrong, in words."""
        return CHECK_TEXTS[self.kind].format(by=self.by)

    @property
    def title(self) -> str:
        """The line with its executor or transform and its module: `inductor in layers.0.mlp: t5 = torch.tanh(t4)`."""
        where = f" in {self.module}" if self.module else ""
        return f"{self.by or self.kind}{where}: {self.line}"


class NonFiniteLine(ReportFacts):
    """The first line whose result has NaN, or an infinity, although its inputs were finite."""

    kind: str
    """`NaN` or `infinity`."""
    run_by: str
    """`eager PyTorch` or `thunder`."""
    line: str
    count: int
    """The number of elements of the result that are NaN, or infinite."""
    module: str = ""
    source: str = ""
    inputs: tuple[TensorFacts, ...] = ()
    largest: dict[str, float] = Field(default_factory=dict)
    """The largest magnitude of each floating-point tensor that the line reads."""


class CheckedLines(ReportFacts):
    """The lines of one module that one executor runs: the number of compared lines, and the worst line."""

    module: str
    executor: str
    trace: str
    compared: int
    line: str
    error: float
    eager_error: float
    allowed: float

    @property
    def used(self) -> float:
        """The error of the worst line relative to the allowed error."""
        return self.error / self.allowed if self.allowed else 0.0


class NotCompared(ReportFacts):
    """A part of a program that was not compared, and the reason."""

    what: str
    count: int
    reason: str


class InternalCheck(ReportFacts):
    """A line-by-line comparison of a program with eager PyTorch: executors' lines, transforms, and the backward."""

    lines: tuple[CheckedLines, ...] = ()
    stages: tuple[str, ...] = ()
    """The transforms whose traces were compared with the previous traces."""
    faults: tuple[Fault, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    seconds: float = 0.0
    budget: float = 0.0
    """The time limit in seconds; 0 for no limit."""

    def join(self, other: InternalCheck) -> InternalCheck:
        """Join two reports into one report on all their programs."""
        return InternalCheck(
            lines=(*self.lines, *other.lines),
            stages=tuple(dict.fromkeys((*self.stages, *other.stages))),
            faults=(*self.faults, *other.faults),
            not_compared=(*self.not_compared, *other.not_compared),
            seconds=self.seconds + other.seconds,
            budget=self.budget + other.budget,
        )

    @property
    def compared(self) -> int:
        """The number of executors' lines that were compared."""
        return sum(lines.compared for lines in self.lines)

    @property
    def worst(self) -> CheckedLines | None:
        """The lines whose error uses the largest share of the allowed error."""
        return max(self.lines, key=lambda lines: lines.used, default=None)

    @property
    def summary(self) -> str:
        """The number of compiled regions and transforms that were compared, and the largest error, in words."""
        regions = f"{self.compared} compiled region{'' if self.compared == 1 else 's'}"
        transforms = f" and {len(self.stages)} transform{'' if len(self.stages) == 1 else 's'}" if self.stages else ""
        worst = f"; the largest error is {self.worst.used:.0%} of the rounding allowance" if self.worst else ""
        left_out = sum(part.count for part in self.not_compared)
        rest = f"; {left_out} not compared" if left_out else ""
        return f"{regions}{transforms} compared with eager{worst}{rest}"

    @property
    def ranked(self) -> list[CheckedLines]:
        """The lines, sorted by their share of the allowed error, the largest first."""
        return sorted(self.lines, key=lambda lines: -lines.used)
