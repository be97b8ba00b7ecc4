"""The contents of a report: everything about one run of the pipeline, as plain data with a schema version."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime, Field

from thunder_core.workflow.benchmark.generation import GenerationBenchmark
from thunder_core.workflow.benchmark.rank_times import RankTimes
from thunder_core.workflow.benchmark.report import BenchmarkReport
from thunder_core.workflow.report.search import SearchReport
from thunder_core.workflow.validation.internal_check import InternalCheck
from thunder_core.workflow.validation.report import Evaluation, GenerationReport, QuantizationReport, ValidationReport
from thunder_core.workflow.validation.report_facts import ReportFacts

SCHEMA_VERSION: Literal[2] = 2


class Gpu(ReportFacts):
    """A GPU that PyTorch can use."""

    name: str
    capability: str
    memory_bytes: int


class Environment(ReportFacts):
    """The interpreter, the libraries and the hardware, which a result may depend on."""

    python: str
    torch: str
    libraries: dict[str, str]
    """The versions of other installed libraries that may affect the result."""
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
    """Remarks about how the model was loaded, in words."""
    caveats: tuple[str, ...] = ()
    """Remarks that every verdict repeats: some weights are random, or the checkpoint has unused weights."""


class RecipeFacts(ReportFacts):
    """The recipe that was applied, with its options."""

    name: str
    options: dict[str, str] = Field(default_factory=dict)
    transforms: tuple[str, ...] = ()
    lookasides: tuple[str, ...] = ()
    """The functions that the recipe replaces while the model is traced."""
    executors: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """The transforms and executors that the user removed (`--without`)."""


class SkippedPart(ReportFacts):
    """A part of the recipe that was skipped on this machine: the reason, and the fix."""

    part: str
    reason: str
    fix: str


class StageTime(ReportFacts):
    """The time of a stage of the pipeline."""

    name: str
    seconds: float


class TraceSummary(ReportFacts):
    """One trace at one stage."""

    trace: str
    """`prologue`, `computation`, `tail`, `backward` or `epilogue`."""
    stage: str
    made_by: str
    lines: int
    """The number of lines of the trace: its bound symbols, without the bound symbols inside them."""
    seconds: float
    changed: int
    """The number of lines that differ from the previous stage."""


class OperationCount(ReportFacts):
    """The number of calls of an operation in the final computation trace."""

    name: str
    count: int


class ExecutorShare(ReportFacts):
    """The share of an executor in a program."""

    executor: str
    operations: int
    """The number of operations of the computation that the executor runs."""
    backward: int = 0
    """The number of operations of the tail and of the compiled backwards that the executor runs."""
    time_share: float | None = None
    """The executor's share of a call's time in the computation, 0 to 1; None if not measured."""
    backward_share: float | None = None
    """The executor's share of a call's time in the backward. All shares of all executors add up to 1."""
    frequent: tuple[OperationCount, ...] = ()
    """The operations of the computation that the executor runs most often."""


class ExecutorRefusal(ReportFacts):
    """The operations that an executor of the recipe did not run, and the reason."""

    executor: str
    reason: str
    operations: int | None = None
    """The number of operations that the executor refused; None if the executor is not available."""


class KernelChoice(ReportFacts):
    """A kernel that an executor chose by a measurement, and the number of operations that use it."""

    executor: str
    choice: str
    operations: int


# Earlier names, for code that imports them.
Refused, Degraded = ExecutorRefusal, SkippedPart


class MemoryPoint(ReportFacts):
    """An estimate of the bytes of tensors, except inputs and parameters, after a line of a final trace."""

    line: int
    bytes: int
    peak: int = 0
    """The largest number of bytes while the bound symbol runs, including its temporaries."""
    trace: str = "computation"


@dataclass(frozen=True)
class Peak:
    """The largest number of bytes of tensors, and the bound symbol that runs at that time."""

    bytes: int
    line: int
    trace: str


class ConstraintFacts(ReportFacts):
    """A constraint that a program's prologue checks."""

    program: int
    number: str
    """The path of the size or number in the inputs."""
    condition: str
    """The condition as a Python expression."""
    names: str = ""
    """The paths of the other sizes and numbers of the condition in the inputs."""
    needed: str
    """The origin of the constraint: a line of the program, a range, or the compiler."""


class ExecutorComparison(ReportFacts):
    """The difference between an executor's results and eager PyTorch's, measured during the run."""

    executor: str
    operations: tuple[str, ...]
    """The operations that the executor computes together: one operation, a match of a pattern or a fused region."""
    claims: int
    """The number of times that the programs, forward and backward, contain these operations."""
    compared: int
    """The number of calls of these operations that were compared."""
    largest: float
    """The largest difference between the values, which is within the allowance for rounding."""
    left_out: str = ""
    """The reason why these operations were not compared; empty if they were compared."""


class ComparisonFacts(ReportFacts):
    """The comparison of executors with eager PyTorch during the run; saved programs run without this comparison."""

    by: str
    """The name of the executor that ran the comparison."""
    operations: tuple[ExecutorComparison, ...]

    @property
    def summary(self) -> str:
        """The number of claims that were compared, their executors, and the largest difference, in words."""
        compared = [comparison for comparison in self.operations if not comparison.left_out]
        left_out = sum(comparison.claims for comparison in self.operations if comparison.left_out)
        rest = f"; {left_out} could not be compared" if left_out else ""
        if not compared:
            return f"nothing was compared{rest or ': eager PyTorch ran all operations'}"
        names = ", ".join(dict.fromkeys(comparison.executor for comparison in compared))
        largest = max(comparison.largest for comparison in compared)
        claims = sum(comparison.claims for comparison in compared)
        agree = f"{claims} claim of {names} agrees" if claims == 1 else f"{claims} claims of {names} agree"
        return f"{agree} with eager PyTorch; the largest difference is {largest:.2g}{rest}"


class Report(ReportFacts):
    """All facts about one run, written as report.json, report.md and report.html."""

    schema_version: Literal[2] = SCHEMA_VERSION
    thunder: str
    created: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    environment: Environment
    model: ModelFacts
    recipe: RecipeFacts
    plan: tuple[str, ...] = ()
    """The lines of the plan that was shown before the run."""
    degraded: tuple[SkippedPart, ...] = ()
    """The parts of the recipe that were skipped on this machine."""
    sharp_edges: tuple[str, ...] = ()
    """The operations of the model that may behave differently in the programs than in eager PyTorch, in words."""
    train: bool = False
    """Whether a training step was optimized: forward, loss and backward."""
    weights_bytes: int = 0
    """The size of the weights in the artifact; 0 if they were not included."""
    stages: tuple[StageTime, ...] = ()
    traces: tuple[TraceSummary, ...] = ()
    executors: tuple[ExecutorShare, ...] = ()
    refused: tuple[ExecutorRefusal, ...] = ()
    """The operations that executors of the recipe did not run."""
    choices: tuple[KernelChoice, ...] = ()
    """The kernels that executors chose by a measurement."""
    operations: tuple[OperationCount, ...] = ()
    memory: tuple[MemoryPoint, ...] = ()
    """The estimated memory after each bound symbol."""
    saved_bytes: int = 0
    """An estimate of the bytes that the forward of a training step saves for its backward."""
    ranks: tuple[RankTimes, ...] = ()
    """The times of one call on each rank; empty without several ranks, and without a benchmark."""
    no_backward_reason: str = ""
    """The reason why the program has no compiled backward; empty if it has a backward."""
    validation_state: Literal["validated", "pending", "off"] = "off"
    """`pending`: the artifact must still be validated on another machine; `off`: no validation was requested."""
    validation: ValidationReport | None = None
    generation: GenerationReport | None = None
    """The validation of generation; None if single calls were validated, or nothing was."""
    benchmark: BenchmarkReport | None = None
    dynamic: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """The ranges of sizes that the programs support, by the names of dimensions."""
    tried_sizes: str = ""
    """The tried sizes of the ranges, in words; a program accepts each of them."""
    programs: int = 0
    """The number of programs; 0 in reports of earlier versions."""
    constraints: tuple[ConstraintFacts, ...] = ()
    """The constraints of the programs on varying sizes and numbers."""
    further_benchmarks: tuple[BenchmarkReport, ...] = ()
    """The measurements at other sizes of the ranges."""
    generation_benchmarks: tuple[GenerationBenchmark, ...] = ()
    """The measurements of `generate`, one for each size of a batch."""

    comparison: ComparisonFacts | None = None
    """The comparison of each executor with eager PyTorch; None if no executor of the recipe compares."""
    search: SearchReport | None = None
    """The search that chose the recipe; None if the user named the recipe."""
    quantization: QuantizationReport | None = None
    """The quantized model compared with the float model; None without quantization or without validation."""
    evaluation: Evaluation | None = None
    """A metric of eager PyTorch and of the optimized model on real samples; None without samples."""

    @property
    def internal_check(self) -> InternalCheck | None:
        """The validation's comparison of each line of the programs with eager PyTorch; None without a validation."""
        report = self.generation or self.validation
        return None if report is None else report.internal_check

    @property
    def speed(self) -> BenchmarkReport | None:
        """The benchmark of single calls if there is one, else the first of `generate`; None without a benchmark."""
        return self.benchmark or next(iter(self.generation_benchmarks), None)

    @property
    def memory_peak(self) -> Peak | None:
        """The largest memory of the program, without inputs and parameters; None if it is not known."""
        if not any(point.bytes for point in self.memory):
            return None
        highest = max(self.memory, key=lambda point: max(point.bytes, point.peak))
        return Peak(max(highest.bytes, highest.peak), highest.line, highest.trace)
