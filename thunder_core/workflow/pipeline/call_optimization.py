"""The optimization of single calls, for inputs of one size or of ranges, in inference or in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import last_program, trace_for
from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.foundation.package import __version__
from thunder_core.workflow.artifact.origin import TracedCalls
from thunder_core.workflow.benchmark import BenchmarkReport, BenchmarkSuite, measure, require_speedup
from thunder_core.workflow.benchmark.measurement import MeasurementSettings
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.request.bench_request import THUNDER
from thunder_core.workflow.pipeline.session.application import apply
from thunder_core.workflow.pipeline.session.build_report import Results
from thunder_core.workflow.pipeline.session.clock import StageClock, announce_stages
from thunder_core.workflow.pipeline.session.dynamic import arguments_of
from thunder_core.workflow.pipeline.session.executor_comparison import (
    blame_executor,
    comparing_executors,
    comparison_facts,
    name_wrong_executor,
)
from thunder_core.workflow.pipeline.session.internal_check import (
    name_wrong_line,
    run_internal_check,
    time_run,
    with_internal_check,
)
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.planning import has_first_calls
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.pipeline.session.program_time import TimeShares, program_shares
from thunder_core.workflow.pipeline.session.progress import COMPARE, EVALUATE
from thunder_core.workflow.pipeline.session.range_coverage import RangeCoverage, suppress_shortfalls
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.pipeline.session.sizes import require_images
from thunder_core.workflow.report import ComparisonFacts
from thunder_core.workflow.validation import ValidationReport
from thunder_core.workflow.validation.internal_check import InternalCheck
from thunder_core.workflow.validation.report import Evaluation


@dataclass(eq=False)
class CallOptimization:
    """The steps that optimize single calls of a model. `kernels` are the kernels of a cross-compiled program."""

    plan: Plan
    session: Session
    clock: StageClock
    kernels: tuple[DeviceCode, ...] = ()
    example: Inputs = field(init=False)
    arguments: tuple[SymbolicArgument, ...] | None = None
    tried_sizes: str = ""

    def __post_init__(self) -> None:
        request, prepared = self.plan.request, self.plan.prepared
        if request.dynamic:
            self.arguments = arguments_of(self.session, prepared.recipe, request.dynamic, self.plan.size)
        self.session = self._compile_prepared(prepared)

    def _compile_prepared(self, prepared: PreparedModel) -> Session:
        """Return the session with a newly compiled model."""
        return replace(self.session, compile=partial(apply, prepared, symbolic=self.arguments))

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Put the model into the mode for its calls while the block runs; raise errors if it cannot run."""
        plan, request, session = self.plan, self.plan.request, self.session
        with session.ready(), suppress_shortfalls() if request.dynamic else nullcontext():
            session.require_memory_for(plan.largest, runs=not request.target, validate=request.validate)
            if not request.target:
                require_images(session, request.dynamic, plan.size)
            if plan.evaluation_data is not None:
                session.require_judgeable_samples(plan.evaluation_data, plan.size, request.metric)
            yield

    def acquire(self) -> Program:
        """Trace and compile the model, and return its program.

        For a target, the kernels are stored and nothing is run. Otherwise, the model is called on the example, on
        variants of the example and, for ranges, on other sizes. The last program is that of the example.
        """
        self.example = self.session.inputs(self.plan.size)
        variants = self.session.variants(self.example)
        with announce_stages(self.session.compiled, self.clock, has_first_calls=has_first_calls(self.plan.request)):
            if self.plan.request.target:
                self._trace_for_target(variants)
            else:
                self._trace()
        if not self.plan.request.target and variants:
            for inputs in (*variants, self.example):
                self.session.call(inputs)
        program = last_program(self.session.compiled)
        if dynamic := self.plan.request.dynamic:
            coverage = RangeCoverage(self.session, dynamic, self.plan.size)
            self.tried_sizes = coverage.coverage_proof() if self.plan.request.target else coverage.complete()
        self.session.release()
        return program

    def _trace(self) -> None:
        with name_wrong_executor(
            self.plan.prepared, lambda candidate: self._compile_prepared(candidate).call(self.example)
        ):
            self.session.call(self.example)

    def _trace_for_target(self, variants: Sequence[Inputs]) -> None:
        device, target = torch.device(self.plan.device), self.plan.request.target
        kernels: dict[bytes, DeviceCode] = {}
        with torch.no_grad():
            for inputs in (*variants, self.example):
                _, codes = trace_for(self.session.compiled, device, (), dict(inputs), target=target)
                kernels |= {code.image: code for code in codes}
        self.kernels = tuple(kernels.values())

    def compare_executors(self) -> ComparisonFacts | None:
        """If an executor of the recipe compares other executors with eager PyTorch, call the model at each size.

        Raises `WrongResult` for the first claimed operation with a wrong result.
        """
        if self.plan.comparing is None:
            return None
        self.clock.begin(COMPARE)
        session, points = self._compile_prepared(self.plan.comparing), self.plan.points
        for number, size in enumerate(points):
            self.clock.advance(number, len(points))
            session.call(session.inputs(size))
        session.release()
        return comparison_facts(session.compiled, comparing_executors(self.plan.comparing)[0])

    def results(self, program: Program) -> Results:  # noqa: ARG002 - later calls may run another program
        """Return the results that the request asks for: validation, evaluation and measurement."""
        request = self.plan.request
        validation = self._validate() if request.validate else None
        evaluation = self._evaluate()
        measured = self._measure_all() if request.benchmark else []
        benchmark = measured[0] if measured else None
        if measured and request.require_speedup is not None:
            suite = BenchmarkSuite(thunder=__version__, reports=tuple(measured))
            require_speedup(suite if measured[1:] else measured[0], request.require_speedup, THUNDER)
        shares = self._shares() if request.benchmark else TimeShares()
        return Results(validation, evaluation, benchmark, shares, tuple(measured[1:]), self.tried_sizes)

    def _validate(self) -> ValidationReport:
        self.clock.begin("validate")
        request = self.plan.request

        def check(seconds: float) -> InternalCheck | None:
            return run_internal_check(self.session, self.example, seconds=seconds)

        with blame_executor(self.plan.prepared), name_wrong_line(check):
            report, seconds = time_run(
                lambda: self.session.validation_report(
                    self.plan.size,
                    request.inputs,
                    further_sizes=self.plan.points[1:],
                    allow_non_finite=request.allow_non_finite,
                    advance=self.clock.advance,
                    seconds=request.validate_budget,
                )
            )
        return with_internal_check(report, check, seconds)

    def _evaluate(self) -> Evaluation | None:
        if self.plan.evaluation_data is None:
            return None
        self.clock.begin(EVALUATE)
        metric = self.plan.request.metric
        return self.session.evaluation(self.plan.evaluation_data, self.plan.size, metric, advance=self.clock.advance)

    def _measure_all(self) -> list[BenchmarkReport]:
        """Return the measurement at the traced size, and at the other sizes of the ranges, if there are any."""
        self.clock.begin("benchmark")
        return [self._measure_at(size) for size in self.plan.points]

    def _measure_at(self, size: InputSize) -> BenchmarkReport:
        session = self.session
        example = session.inputs(size)
        eager, optimized = session.call_of(session.original), session.call_of(session.compiled)
        return measure(
            {"eager": lambda: eager(**example), THUNDER: lambda: optimized(**example)},
            MeasurementSettings(
                runs=self.plan.request.runs,
                warmup=self.plan.request.warmup,
                device=session.device,
                progress=self.clock.advance,
                release=session.release,
                configuration=session.configuration(size),
                seconds=self.plan.request.benchmark_budget,
            ),
        )

    def _shares(self) -> TimeShares:
        """Return each executor's share of the time of the program that runs the example."""
        self.session.call(self.example)
        with torch.set_grad_enabled(self.session.purpose.train):
            return program_shares(last_program(self.session.compiled), self.session.model, self.example)

    def traced_calls(self) -> TracedCalls:
        """Return the facts about the calls that the artifact stores."""
        return self.facts_of_calls(self.plan.size, self.example)

    def facts_of_calls(self, size: InputSize, example: Inputs) -> TracedCalls:
        """Return the facts about calls with inputs of this size and this example."""
        session, request = self.session, self.plan.request
        random_inputs = {**size.stated, **session.purpose.input_options, "seed": session.seed}
        return TracedCalls(
            example=example if all(isinstance(argument, torch.Tensor) for argument in example.values()) else {},
            train=request.train,
            dynamic=request.dynamic,
            random_inputs=random_inputs
            if session.purpose.could_be_random(session.loaded, example, **random_inputs)
            else {},
            target=request.target,
            kernels=self.kernels,
        )
