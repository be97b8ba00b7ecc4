"""The optimization of the programs that `generate` of the transformers library calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler.for_device import compile_for
from thunder_core.foundation.errors import CannotGenerate
from thunder_core.foundation.options.generation_lengths import GenerationLengths, Prompts
from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.foundation.package import __version__
from thunder_core.workflow.artifact.format.manifest import GenerationFacts
from thunder_core.workflow.artifact.format.parts import part_facts
from thunder_core.workflow.artifact.origin import TracedCalls
from thunder_core.workflow.benchmark import BenchmarkSuite, require_speedup
from thunder_core.workflow.benchmark.generation import GenerationBenchmark
from thunder_core.workflow.benchmark.measurement import MeasurementSettings
from thunder_core.workflow.models.folder.weight_bytes import LARGE_WEIGHT_BYTES, weight_bytes
from thunder_core.workflow.models.inputs.prompts import require_generation
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.pipeline.generation.generation_calls import EagerGenerator, inputs_of, observe_sizes
from thunder_core.workflow.pipeline.generation.generation_coverage import GenerationCoverage
from thunder_core.workflow.pipeline.generation.generation_findings import generation_report
from thunder_core.workflow.pipeline.generation.generation_speed import Contender, measure_generation
from thunder_core.workflow.pipeline.generation.values_without_device import token_within_text, values_on_meta
from thunder_core.workflow.pipeline.request.bench_request import THUNDER
from thunder_core.workflow.pipeline.session.application import apply
from thunder_core.workflow.pipeline.session.build_report import Results
from thunder_core.workflow.pipeline.session.clock import StageClock, announce_stages
from thunder_core.workflow.pipeline.session.executor_comparison import comparing_executors, comparison_facts
from thunder_core.workflow.pipeline.session.internal_check import (
    check_calls,
    name_wrong_line,
    time_run,
    with_internal_check,
)
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.pipeline.session.program_time import TimeShares
from thunder_core.workflow.pipeline.session.progress import COMPARE
from thunder_core.workflow.pipeline.session.range_coverage import suppress_shortfalls
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.report import ComparisonFacts
from thunder_core.workflow.validation.internal_check import InternalCheck
from thunder_core.workflow.validation.report import GenerationReport

ROUNDS, WARMUP = 6, 1  # maximum numbers; each round has one measurement for each new token


@dataclass(eq=False)
class GenerationOptimization:
    """The steps that optimize generation: the programs are traced while `generate` runs.

    For a cross-compilation target, the model has no data, and `generate` runs on the meta device.
    """

    plan: Plan
    session: Session
    clock: StageClock
    lengths: GenerationLengths
    target_kernels: list[DeviceCode] = field(default_factory=list)
    arguments: tuple[SymbolicArgument, ...] | None = None
    tried_sizes: str = ""

    def __post_init__(self) -> None:
        require_generation(self.session.loaded)
        require_kept_methods(self.plan, self.session)

    @property
    def kernels(self) -> tuple[DeviceCode, ...]:
        """The kernels of cross-compiled programs."""
        return tuple(self.target_kernels)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Put the model into the mode for its calls while the block runs; raise `OutOfMemory`."""
        target = self.plan.request.target
        next_token = token_within_text(getattr(self.session.model, "generation_config", None))
        values = values_on_meta(next_token) if target else nullcontext()
        with self.session.ready(), suppress_shortfalls(), quiet_transformers(), values:
            self.session.require_memory_for(self.plan.largest, runs=not target)
            yield

    def acquire(self) -> Program:
        """Trace by generating after prompts of all kinds; return the program that generates the last token."""
        prepared = self.plan.prepared
        eager = EagerGenerator(self.session.model, prepared.transforms)
        self.arguments = observe_sizes(self.session, prepared.recipe, self.lengths, eager).arguments(self.lengths)
        self.session = self._compile_prepared(prepared)
        coverage = GenerationCoverage(self.session, self.lengths)
        with announce_stages(self.session.compiled, self.clock):
            coverage.trace(1)
        program = coverage.trace(self.lengths.new_tokens)
        self.tried_sizes = coverage.complete()
        return program

    def _compile_prepared(self, prepared: PreparedModel) -> Session:
        """Return the session with a newly compiled model."""
        return replace(self.session, compile=partial(self._compile, prepared))

    def _compile(self, prepared: PreparedModel, model: torch.nn.Module) -> torch.nn.Module:
        """Compile a model by a recipe, for this machine or for the target of the request."""
        compiled, target = apply(prepared, model, symbolic=self.arguments), self.plan.request.target
        if not target:
            return compiled
        return compile_for(compiled, torch.device(self.plan.device), target, self.target_kernels)

    def compare_executors(self) -> ComparisonFacts | None:
        """If an executor of the recipe compares other executors with eager PyTorch, generate tokens with it.

        Raises `WrongResult` for the first claimed operation with a wrong result.
        """
        if self.plan.comparing is None:
            return None
        self.clock.begin(COMPARE)
        session = self._compile_prepared(self.plan.comparing)
        GenerationCoverage(session, self.lengths).complete()
        return comparison_facts(session.compiled, comparing_executors(self.plan.comparing)[0])

    def results(self, program: Program) -> Results:  # noqa: ARG002 - single calls measure it
        """Return the results that the request asks for: validation and measurement."""
        request = self.plan.request
        generation = self._validate() if request.validate else None
        measured = self._measure_all() if request.benchmark else ()
        if measured and request.require_speedup is not None:
            suite = BenchmarkSuite(thunder=__version__, reports=measured)
            require_speedup(suite, request.require_speedup, THUNDER)
        return Results(None, None, None, TimeShares(), (), self.tried_sizes, generation, measured)

    def _validate(self) -> GenerationReport:
        self.clock.begin("validate")
        coverage = GenerationCoverage(self.session, self.lengths)

        def check(seconds: float) -> InternalCheck | None:
            return check_calls(self.session, lambda: coverage.trace(2), seconds=seconds)

        with name_wrong_line(check):
            report, seconds = time_run(self._compare)
        coverage.require_all_served()
        return with_internal_check(report, check, seconds)

    def _compare(self) -> GenerationReport:
        """Compare with eager generation on new prompts."""
        accepts, advance = self.plan.request.allow_non_finite, self.clock.advance
        seed = self.session.seed
        return generation_report(self.session, self.lengths, seed, allow_non_finite=accepts, advance=advance)

    def _measure_all(self) -> tuple[GenerationBenchmark, ...]:
        """Return the measurements of the longest prompts: of a single prompt, and of the largest batch."""
        self.clock.begin("benchmark")
        batches = sorted({1, self.lengths.batch})
        return tuple(self._measure_at(self.lengths.largest._replace(batch=batch)) for batch in batches)

    def _measure_at(self, prompts: Prompts) -> GenerationBenchmark:
        """Return the measurement for prompts of this size.

        On the CPU, the peak memory of large models is not measured, because the profiler stores every event.
        """
        session, request = self.session, self.plan.request
        return measure_generation(
            self._contenders(),
            inputs_of(session, prompts, session.seed),
            self.lengths.new_tokens,
            MeasurementSettings(
                runs=min(request.runs, ROUNDS),
                warmup=min(request.warmup, WARMUP),
                device=session.device,
                configuration={**session.names, "dtype": str(session.loaded.source["dtype"])},
                progress=self.clock.advance,
                seconds=request.benchmark_budget,
                memory=session.device.type != "cpu" or weight_bytes(session.model) < LARGE_WEIGHT_BYTES,
            ),
        )

    def _contenders(self) -> Mapping[str, Contender]:
        """Return the models to measure: eager PyTorch first."""
        return {"eager": Contender(self.session.original), THUNDER: Contender(self.session.generator)}

    def traced_calls(self) -> TracedCalls:
        """Return the facts about generation that the artifact stores."""
        facts = GenerationFacts(lengths=self.lengths, seed=self.session.seed)
        return TracedCalls(generation=facts, target=self.plan.request.target, kernels=self.kernels)


def require_kept_methods(plan: Plan, session: Session) -> None:
    """Raise `CannotGenerate` if a transform replaces `generate` and cannot be saved in an artifact."""
    for transform in plan.prepared.transforms:
        if "generate" in transform.methods(session.model) and part_facts(transform) is None:
            raise CannotGenerate(
                f"{type(transform).__name__} of the recipe {plan.prepared.recipe.name} replaces the method `generate`, "
                "but the transform cannot be saved in an artifact",
                fix="make the transform a dataclass in a module, whose fields are literals or importable objects",
            )
