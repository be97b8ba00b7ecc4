"""The findings of a look inside a program: plain data, which joins reports as it is."""

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
IN_WORDS: dict[str, str] = {
    "executor": "the executor {by} computes a different result from eager PyTorch",
    "transform": "the transform {by} changed the result",
    "differentiation": "its derivative differs from autograd's",
    "acquisition": "the trace differs from what the program does",
    "unpacking": "the prologue unpacks a different value from the one that its origin names",
    "guard": "the guards accept inputs that the program does not support",
    "epilogue": "the epilogue returns a different value from the program's",
    "nondeterminism": "its result differs from run to run",
    "stored": "the stored program computes a different result from the one that {by} compiles now",
}


class TensorFacts(ReportFacts):
    """A tensor that a line reads or makes: its name in the trace, and its metadata."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements."""


class Fault(ReportFacts):
    """A line of a program that is wrong: where it stands, who made it so, and by how much it is wrong."""

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
    """The largest absolute error beside float64, or beside eager PyTorch where there is no float64."""
    eager_error: float = 0.0
    """The same of eager PyTorch."""
    allowed: float = 0.0
    """The largest absolute error that rounding explains."""
    module: str = ""
    """The path of the module that the line is part of."""
    source: str = ""
    """The user's line: `FILE:LINE, in FUNCTION`."""
    inputs: tuple[TensorFacts, ...] = ()

    @property
    def reason(self) -> str:
        """The reason why the line is wrong, in words."""
        return IN_WORDS[self.kind].format(by=self.by)

    @property
    def title(self) -> str:
        """The line with its module and who made it so: `inductor in layers.0.mlp: t5 = torch.tanh(t4)`."""
        place = f" in {self.module}" if self.module else ""
        return f"{self.by or self.kind}{place}: {self.line}"


class NonFiniteLine(ReportFacts):
    """The line at which NaN, or an infinity, first appears among values that were finite."""

    kind: str
    """`NaN` or `infinity`."""
    run_by: str
    """`eager PyTorch` or `thunder`."""
    line: str
    count: int
    """How many elements of its result are such."""
    module: str = ""
    source: str = ""
    inputs: tuple[TensorFacts, ...] = ()
    largest: dict[str, float] = Field(default_factory=dict)
    """The largest magnitude of each floating-point tensor that it reads."""


class CheckedLines(ReportFacts):
    """The lines of one module that one executor runs: how many were compared, and the one that used most of its bound.

    `used` is its error as a part of what is allowed.
    """

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
        """The error of the worst line as a part of what is allowed."""
        return self.error / self.allowed if self.allowed else 0.0


class NotCompared(ReportFacts):
    """A part of a program that was not compared, and why."""

    what: str
    count: int
    reason: str


class InsideReport(ReportFacts):
    """A program line by line beside eager PyTorch: lines that executors run, transforms, and the backward."""

    lines: tuple[CheckedLines, ...] = ()
    stages: tuple[str, ...] = ()
    """The steps whose traces were compared with what they were made from."""
    faults: tuple[Fault, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    seconds: float = 0.0
    budget: float = 0.0
    """The seconds that it might have taken; 0 for as long as it takes."""

    def joined(self, other: InsideReport) -> InsideReport:
        """The report of this program and of others."""
        return InsideReport(
            lines=(*self.lines, *other.lines),
            stages=tuple(dict.fromkeys((*self.stages, *other.stages))),
            faults=(*self.faults, *other.faults),
            not_compared=(*self.not_compared, *other.not_compared),
            seconds=self.seconds + other.seconds,
            budget=self.budget + other.budget,
        )

    @property
    def compared(self) -> int:
        """The lines of executors that were compared."""
        return sum(one.compared for one in self.lines)

    @property
    def worst(self) -> CheckedLines | None:
        """The lines that used most of what is allowed."""
        return max(self.lines, key=lambda one: one.used, default=None)

    @property
    def summary(self) -> str:
        """The number of compiled regions and transforms that were compared, and the largest error, in words."""
        regions = f"{self.compared} compiled region{'' if self.compared == 1 else 's'}"
        transforms = f" and {len(self.stages)} transform{'' if len(self.stages) == 1 else 's'}" if self.stages else ""
        worst = f"; the largest error is {self.worst.used:.0%} of the rounding allowance" if self.worst else ""
        left_out = sum(one.count for one in self.not_compared)
        rest = f"; {left_out} not compared" if left_out else ""
        return f"{regions}{transforms} compared with eager{worst}{rest}"

    @property
    def ranked(self) -> list[CheckedLines]:
        """The lines, those that used most of what is allowed first."""
        return sorted(self.lines, key=lambda one: -one.used)
