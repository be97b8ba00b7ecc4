"""The contents of a report: everything about one run of the pipeline, as plain data with a schema version."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime, Field

from thunder_core.workflow.benchmark.generation import GenerationBenchmark
from thunder_core.workflow.benchmark.report import BenchmarkReport
from thunder_core.workflow.report.search import SearchReport
from thunder_core.workflow.validation.inside import InsideReport
from thunder_core.workflow.validation.report import Evaluation, GenerationReport, QuantizationReport, ValidationReport
from thunder_core.workflow.validation.report_facts import ReportFacts

SCHEMA_VERSION: Literal[1] = 1


class Gpu(ReportFacts):
    """One GPU that PyTorch can use."""

    name: str
    capability: str
    memory_bytes: int


class Environment(ReportFacts):
    """The environment that a result may depend on besides the model and the recipe."""

    python: str
    torch: str
    libraries: dict[str, str]
    """Versions of the other libraries that matter and are installed."""
    platform: str
    processor: str
    cores: int
    threads: int
    """The number of threads that PyTorch computes with."""
    memory_bytes: int | None
    cuda: str | None
    """The CUDA version that PyTorch was built for."""
    gpus: tuple[Gpu, ...]


class ModelFacts(ReportFacts):
    """The model that was optimized."""

    name: str
    family: str
    task: str
    parameters: int
    dtype: str
    device: str
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    """The weights that are random, and those of the checkpoint that are left out: they belong to every verdict."""


class RecipeFacts(ReportFacts):
    """The recipe that was applied, with the options that were in force."""

    name: str
    options: dict[str, str] = Field(default_factory=dict)
    transforms: tuple[str, ...] = ()
    lookasides: tuple[str, ...] = ()
    executors: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class Degraded(ReportFacts):
    """A part of the recipe that this machine could not have: why, and what would bring it."""

    part: str
    reason: str
    fix: str


class StageTime(ReportFacts):
    """The time that a stage of the pipeline took."""

    name: str
    seconds: float


class TraceSummary(ReportFacts):
    """One trace at one stage."""

    trace: str
    """`prologue`, `computation`, `tail`, `backward` or `epilogue`."""
    stage: str
    made_by: str
    lines: int
    """Bound symbols at the top level."""
    seconds: float
    changed: int
    """Lines that are not those of the stage before."""


class ExecutorShare(ReportFacts):
    """The share of an executor in a program."""

    executor: str
    operations: int
    """Of the computation."""
    backward: int = 0
    """Of what runs behind it: the tail, and the backwards that were compiled."""
    time_share: float | None = None
    """What its part of the computation takes of the time of a call, 0 to 1, where that was measured."""
    backward_share: float | None = None
    """The same of the backward; all parts together are 1."""


class ExecutorRefusal(ReportFacts):
    """A refusal: what an executor of the recipe did not run, and why."""

    executor: str
    reason: str
    operations: int | None = None
    """How many it was offered; none where it is not available at all."""


class KernelChoice(ReportFacts):
    """A kernel that an executor chose by a measurement: what was measured, and how many operations run by it."""

    executor: str
    choice: str
    operations: int


Refused = ExecutorRefusal  # the name that it had before, for whoever imports that


class OperationCount(ReportFacts):
    """The number of calls of an operation in the final computation trace."""

    name: str
    count: int


class MemoryPoint(ReportFacts):
    """Bytes that tensors take after a bound symbol of a final trace, without inputs and parameters; estimated."""

    line: int
    bytes: int
    peak: int = 0
    """The most while the bound symbol runs, with what it makes for itself alone."""
    trace: str = "computation"


@dataclass(frozen=True)
class Peak:
    """The most bytes that tensors take, and the bound symbol that runs then."""

    bytes: int
    line: int
    trace: str


class ConstraintFacts(ReportFacts):
    """A constraint that a program's prologue checks."""

    program: int
    number: str
    """The path of the size or number that it is about."""
    condition: str
    """Python."""
    names: str = ""
    """The paths of the other symbols in the condition."""
    needed: str
    """Who needed it: a line of the program's, a range, or the compiler."""


class ExecutorComparison(ReportFacts):
    """The results of an executor for the same operations, compared with eager PyTorch's as they were computed."""

    executor: str
    operations: tuple[str, ...]
    """What the executor computes in one: a single operation, or those of a match or a fused region."""
    claims: int
    """How many bound symbols of all programs it is, forward and backward."""
    compared: int
    """How many calls of them were compared."""
    largest: float
    """The largest difference of values, which is within rounding."""
    left_out: str = ""
    """Why they were not compared; empty where they were."""


class ComparisonFacts(ReportFacts):
    """The comparison of executors with eager PyTorch as they ran, which the artifact's programs do not repeat."""

    by: str
    """The executor that compared the others."""
    operations: tuple[ExecutorComparison, ...]

    @property
    def summary(self) -> str:
        """The number of claims that were compared, their executors, and the largest difference, in words."""
        compared = [one for one in self.operations if not one.left_out]
        left_out = sum(one.claims for one in self.operations if one.left_out)
        rest = f"; {left_out} could not be compared" if left_out else ""
        if not compared:
            return f"nothing was compared{rest or ': eager PyTorch ran all operations'}"
        names = ", ".join(dict.fromkeys(one.executor for one in compared))
        largest = max(one.largest for one in compared)
        claims = sum(one.claims for one in compared)
        agree = f"{claims} claim{' of {} agrees' if claims == 1 else 's of {} agree'}".format(names)
        return f"{agree} with eager PyTorch; the largest difference is {largest:.2g}{rest}"


class Report(ReportFacts):
    """Everything about one run; written as report.json, report.md and report.html."""

    schema_version: Literal[1] = SCHEMA_VERSION
    thunder: str
    created: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    environment: Environment
    model: ModelFacts
    recipe: RecipeFacts
    plan: tuple[str, ...] = ()
    degraded: tuple[Degraded, ...] = ()
    sharp_edges: tuple[str, ...] = ()
    train: bool = False
    """Whether what was optimized is a step of training: forward, loss and backward."""
    weights_bytes: int = 0
    """The size of the weights in the artifact; 0 where they were not included."""
    stages: tuple[StageTime, ...] = ()
    traces: tuple[TraceSummary, ...] = ()
    executors: tuple[ExecutorShare, ...] = ()
    refused: tuple[ExecutorRefusal, ...] = ()
    choices: tuple[KernelChoice, ...] = ()
    operations: tuple[OperationCount, ...] = ()
    memory: tuple[MemoryPoint, ...] = ()
    saved_bytes: int = 0
    """What the forward of a step of training keeps for its backward; estimated."""
    recorded: str = ""
    """Why the program has no backward of its own; empty where it has one."""
    validation_state: Literal["validated", "pending", "off"] = "off"
    """`pending`: it can be validated only elsewhere, and has yet to be; `off`: nobody asked for it."""
    validation: ValidationReport | None = None
    generation: GenerationReport | None = None
    """The validation of generation; None where single calls were validated, or nothing was."""
    benchmark: BenchmarkReport | None = None
    dynamic: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """The ranges of the sizes that all of it is for, by the names of dimensions."""
    probed: str = ""
    """Of which sizes in the ranges it was tried whether a program takes them."""
    programs: int = 0
    """How many programs serve all calls; 0 in reports of versions that did not count them."""
    constraints: tuple[ConstraintFacts, ...] = ()
    """What the programs want of sizes and numbers that differ from call to call."""
    points: tuple[BenchmarkReport, ...] = ()
    """The measurements at other sizes of the ranges."""
    generation_benchmarks: tuple[GenerationBenchmark, ...] = ()
    """The measurements of `generate`, one for each size of a batch."""

    @property
    def inside(self) -> InsideReport | None:
        """The programs line by line beside eager PyTorch, as validation has looked into them."""
        found = self.generation or self.validation
        return None if found is None else found.inside

    comparison: ComparisonFacts | None = None
    """The comparison of each executor with eager PyTorch; None where no executor of the recipe does that."""
    search: SearchReport | None = None
    """The search by which the recipe was chosen; None where the user named it."""
    quantization: QuantizationReport | None = None
    """The quantized model beside the float one; None where the recipe does not quantize, or nothing was validated."""
    evaluation: Evaluation | None = None
    """How the model does on real samples, before and after; None where none were named."""

    @property
    def speed(self) -> BenchmarkReport | None:
        """The measurement that tells how fast the model is: of its calls, or else of `generate`; None without one."""
        return self.benchmark or next(iter(self.generation_benchmarks), None)

    @property
    def memory_peak(self) -> Peak | None:
        """The most that the program itself takes, without inputs and parameters; None where nothing is known."""
        if not any(point.bytes for point in self.memory):
            return None
        highest = max(self.memory, key=lambda point: max(point.bytes, point.peak))
        return Peak(max(highest.bytes, highest.peak), highest.line, highest.trace)
