"""An optimization, stage by stage: load, check, acquire, transform, compile, validate, benchmark, write."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from thunder_core.artifact.write import write_artifact
from thunder_core.benchmark import BenchmarkReport, BenchmarkSuite, measure, require_speedup
from thunder_core.claiming.device_code import DeviceCode
from thunder_core.compiler import last_program, trace_for
from thunder_core.errors import OutputExists
from thunder_core.models.input_size import InputSize
from thunder_core.models.inputs import Inputs
from thunder_core.package import __version__
from thunder_core.pipeline.application import apply
from thunder_core.pipeline.bench_request import OURS
from thunder_core.pipeline.build_report import Results, build_report, running_traces
from thunder_core.pipeline.clock import StageClock, announcing_stages
from thunder_core.pipeline.dynamic import arguments_of
from thunder_core.pipeline.executors import given_up
from thunder_core.pipeline.failures import stage_failures
from thunder_core.pipeline.planning import Plan, destination_of, plan
from thunder_core.pipeline.prepare import as_facts, require_whole
from thunder_core.pipeline.program_time import TimeShares, program_shares
from thunder_core.pipeline.progress import EVALUATE, Progress, Unwatched
from thunder_core.pipeline.range_coverage import RangeCoverage, shortfalls_expected
from thunder_core.pipeline.request import Request
from thunder_core.pipeline.session import Session, open_model
from thunder_core.pipeline.sizes import require_images
from thunder_core.report import Report
from thunder_core.runtime.program import Program
from thunder_core.validation import ValidationReport
from thunder_core.validation.report import Evaluation


@dataclass(frozen=True)
class Outcome:
    """The result of an optimization: its report, the artifact's folder, and the compiled module itself."""

    report: Report
    artifact: Path
    compiled: torch.nn.Module


def optimize(request: Request, progress: Progress | None = None) -> Outcome:
    """Optimize a model by a recipe, validate and measure it, and write the artifact.

    Raises a ThunderError for everything that a user can mend; nothing is then left on the disk.
    """
    return carry_out(plan(request), progress)


def carry_out(plan: Plan, progress: Progress | None = None) -> Outcome:
    """Do what a plan says."""
    clock = StageClock(progress or Unwatched())
    with stage_failures(lambda: clock.stage or "the start"):
        return _carry_out(plan, clock)


def _carry_out(plan: Plan, clock: StageClock) -> Outcome:
    request = plan.request
    clock.begin("load")
    session = open_model(plan.prepared, plan.purpose, clock.begin)
    if request.dynamic:
        arguments = arguments_of(session, plan.prepared.recipe, request.dynamic, plan.size)
        session = replace(session, compile=partial(apply, plan.prepared, symbolic=arguments))
    with session.ready(), shortfalls_expected() if request.dynamic else nullcontext():
        session.require_memory_for(plan.largest, runs=not request.target, validate=request.validate)
        if not request.target:
            require_images(session, request.dynamic, plan.size)
        if plan.judged_by is not None:
            session.require_judgeable_samples(plan.judged_by, plan.size, request.metric)
        clock.begin("acquire")
        example = session.inputs(plan.size)
        kernels = _trace(plan, session, example, clock)
        program = last_program(session.compiled)
        probed = RangeCoverage(session, request.dynamic, plan.size).complete() if request.dynamic else ""
        if request.strict:
            require_whole(plan.prepared.recipe, as_facts(given_up(running_traces(program))))
        results = replace(_results(plan, session, program, example, clock), probed=probed)
    clock.begin("write")
    while True:
        plan = replace(plan, destination=destination_of(request, plan.prepared, plan.destination.parent))
        report = build_report(plan, session, program, clock.times, results, kernels)
        try:
            _write(plan, session, report, example, kernels)
            break
        except OutputExists:  # a run beside this one may have taken the name that was free
            if request.out is not None:
                raise
    clock.stop()
    return Outcome(report, plan.destination, session.compiled)


def _trace(plan: Plan, session: Session, example: Inputs, clock: StageClock) -> tuple[DeviceCode, ...]:
    """Compile by the first call; for a target, which need not be here, by a trace alone, whose kernels are returned."""
    with announcing_stages(session.compiled, clock):
        if not plan.request.target:
            session.call(example)
            return ()
        with torch.no_grad():
            _, kernels = trace_for(
                session.compiled, torch.device(plan.device), (), dict(example), target=plan.request.target
            )
    return kernels


def _results(plan: Plan, session: Session, program: Program, example: Inputs, clock: StageClock) -> Results:
    """The validation, the evaluation and the measurement, as far as the request asks for them."""
    request = plan.request
    validation = _validated(plan, session, clock) if request.validate else None
    evaluation = _evaluated(plan, session, clock)
    measured = _measured(plan, session, clock) if request.benchmark else []
    benchmark = measured[0] if measured else None
    if measured and request.require_speedup is not None:
        suite = BenchmarkSuite(thunder=__version__, reports=tuple(measured))
        require_speedup(suite if measured[1:] else measured[0], request.require_speedup, OURS)
    shares = _shares(session, program, example) if request.benchmark else TimeShares()
    return Results(validation, evaluation, benchmark, shares, tuple(measured[1:]))


def _validated(plan: Plan, session: Session, clock: StageClock) -> ValidationReport:
    clock.begin("validate")
    request = plan.request
    return session.validation_report(
        plan.size,
        request.inputs,
        others=plan.points[1:],
        allow_non_finite=request.allow_non_finite,
        advance=clock.advance,
    )


def _evaluated(plan: Plan, session: Session, clock: StageClock) -> Evaluation | None:
    if plan.judged_by is None:
        return None
    clock.begin(EVALUATE)
    return session.evaluation(plan.judged_by, plan.size, plan.request.metric, advance=clock.advance)


def _measured(plan: Plan, session: Session, clock: StageClock) -> list[BenchmarkReport]:
    """The measurement at the size that was traced, and at the other points of the ranges, if there are any."""
    clock.begin("benchmark")
    return [_measured_at(size, plan, session, clock) for size in plan.points]


def _measured_at(size: InputSize, plan: Plan, session: Session, clock: StageClock) -> BenchmarkReport:
    example = session.inputs(size)
    eager, ours = session.call_of(session.model), session.call_of(session.compiled)
    return measure(
        {"eager": lambda: eager(**example), OURS: lambda: ours(**example)},
        runs=plan.request.runs,
        warmup=plan.request.warmup,
        device=session.device,
        progress=clock.advance,
        release=session.release,
        configuration=session.configuration(size),
    )


def _shares(session: Session, program: Program, example: Inputs) -> TimeShares:
    """Each executor's part of the time of the program."""
    with torch.set_grad_enabled(session.purpose.train):
        return program_shares(program, session.model, example)


def _write(plan: Plan, session: Session, report: Report, example: Inputs, kernels: tuple[DeviceCode, ...]) -> None:
    """Write the artifact."""
    request, recipe, loaded = plan.request, plan.prepared.recipe, session.loaded
    drawn = {**plan.size.stated, "seed": session.seed}
    write_artifact(
        plan.destination,
        compiled=session.compiled,
        source={**loaded.source, "device": plan.device},
        fingerprint=loaded.fingerprint,
        recipe=recipe.name,
        options=recipe.options,
        report=report,
        example=example if all(isinstance(one, torch.Tensor) for one in example.values()) else {},
        train=request.train,
        tolerance=asdict(session.tolerance(loaded.model.dtype)),
        dynamic=request.dynamic,
        drawn=drawn if session.purpose.could_be_drawn(loaded, example, **drawn) else {},
        include_weights=request.include_weights,
        target=request.target,
        kernels=kernels,
        force=request.force,
        sign_key=request.sign_key,
    )
