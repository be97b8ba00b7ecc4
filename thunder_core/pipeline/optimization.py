"""The whole way, one line a stage: load, check, acquire, transform, compile, validate, benchmark, write."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch

from thunder_core.artifact.write import write_artifact
from thunder_core.benchmark import BenchmarkReport, measure, require_speedup
from thunder_core.claiming.device_code import DeviceCode
from thunder_core.compiler import last_program, trace_for
from thunder_core.models.dataset import Dataset
from thunder_core.models.load import LoadedModel, load_model
from thunder_core.models.task import LANGUAGE_TASKS
from thunder_core.pipeline.application import apply
from thunder_core.pipeline.bench_request import OURS
from thunder_core.pipeline.build_report import build_report, running
from thunder_core.pipeline.clock import Clock, announcing
from thunder_core.pipeline.estimate import require_memory
from thunder_core.pipeline.evaluate import evaluate, require_judgeable
from thunder_core.pipeline.executors import given_up
from thunder_core.pipeline.failures import stage_failures
from thunder_core.pipeline.planning import Plan, plan
from thunder_core.pipeline.prepare import as_facts, require_whole
from thunder_core.pipeline.program_time import TimeShares, program_shares
from thunder_core.pipeline.progress import EVALUATE, Progress, Unwatched
from thunder_core.pipeline.purpose import Inputs
from thunder_core.pipeline.request import Request
from thunder_core.report import Report
from thunder_core.runtime.program import Program
from thunder_core.validation import ValidationReport, validate
from thunder_core.validation.report import Evaluation

ONE_BATCH = "the file of inputs holds one batch, which was traced too: nothing else was validated on"


@dataclass(frozen=True)
class Outcome:
    """What an optimization gave: its report, the artifact's folder, and the compiled module itself."""

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
    clock = Clock(progress or Unwatched())
    with stage_failures(lambda: clock.stage or "the start"):
        return _carry_out(plan, clock)


def _carry_out(plan: Plan, clock: Clock) -> Outcome:
    prepared, request = plan.prepared, plan.request
    purpose = plan.purpose
    clock.begin("load")
    loaded = load_model(prepared.model)
    clock.begin("check the recipe")
    prepared.recipe.validate_all(loaded.model)
    with purpose.ready(loaded.model):
        sizes = {"batch": request.batch, "seq": plan.seq, "seed": prepared.model.seed}
        require_memory(loaded, purpose, **sizes, runs=not request.target, validate=request.validate)
        if plan.judged_by is not None:
            require_judgeable(loaded, plan.judged_by, request.batch, plan.seq, purpose, request.metric)
        clock.begin("acquire")
        compiled = apply(prepared, loaded.model)
        traced = inputs_of(plan, loaded, 0)
        kernels: tuple[DeviceCode, ...] = ()
        with announcing(compiled, clock):
            if request.target:
                kernels = _for_target(plan, compiled, traced)
            else:
                purpose.call(compiled, loaded.model)(**traced)
        program = last_program(compiled)
        if request.strict:
            require_whole(prepared.recipe, as_facts(given_up(running(program))))
        validation = _validated(plan, loaded, compiled, clock) if request.validate else None
        evaluation = _evaluated(plan, loaded, compiled, clock) if plan.judged_by is not None else None
        benchmark = _measured(plan, loaded, compiled, traced, clock) if request.benchmark else None
        if benchmark and request.require_speedup is not None:
            require_speedup(benchmark, request.require_speedup, OURS)
        shares = _shares(loaded, program, traced, train=request.train) if request.benchmark else TimeShares()
    clock.begin("write")
    report = build_report(plan, loaded, compiled, program, clock.times, validation, benchmark, shares, kernels)
    report = report.model_copy(update={"evaluation": evaluation})
    write_artifact(
        plan.destination,
        compiled=compiled,
        source={**loaded.source, "device": plan.device},
        fingerprint=loaded.fingerprint,
        recipe=prepared.recipe.name,
        options=prepared.recipe.options,
        report=report,
        example=traced,
        train=request.train,
        tolerance=asdict(prepared.recipe.loosest_tolerance(loaded.model.dtype)),
        drawn=sizes if purpose.could_be_drawn(loaded, traced, **sizes) else {},
        include_weights=request.include_weights,
        target=request.target,
        kernels=kernels,
        force=request.force,
        sign_key=request.sign_key,
    )
    clock.stop()
    return Outcome(report, plan.destination, compiled)


def inputs_of(plan: Plan, loaded: LoadedModel, number: int) -> Inputs:
    """The inputs of that number: number 0 is traced, the others, of the same shapes, are for validation."""
    seed = plan.prepared.model.seed
    return plan.purpose.inputs(loaded, batch=plan.request.batch, seq=plan.seq, seed=seed, number=number)


def _for_target(plan: Plan, compiled: Any, inputs: Inputs) -> tuple[DeviceCode, ...]:
    """Trace for a device that need not be here; what is run there is for inference."""
    with torch.no_grad():
        _, kernels = trace_for(compiled, torch.device(plan.device), (), dict(inputs), target=plan.request.target)
    return kernels


def _validated(plan: Plan, loaded: LoadedModel, compiled: Any, clock: Clock) -> ValidationReport:
    clock.begin("validate")
    batch, wanted = plan.request.batch, plan.request.inputs
    numbers = plan.purpose.validating(loaded, batch=batch, seq=plan.seq, wanted=wanted)
    report = validate(
        compiled,
        loaded.model,
        [inputs_of(plan, loaded, number) for number in numbers],
        plan.prepared.recipe.loosest_tolerance(loaded.model.dtype),
        language_model=loaded.task in LANGUAGE_TASKS,
        train=plan.request.train,
        allow_non_finite=plan.request.allow_non_finite,
        progress=clock.advance,
        seed=plan.prepared.model.seed,
    )
    return report if numbers != [0] else report.model_copy(update={"notes": (ONE_BATCH, *report.notes)})


def _evaluated(plan: Plan, loaded: LoadedModel, compiled: Any, clock: Clock) -> Evaluation:
    clock.begin(EVALUATE)
    return evaluate(
        compiled,
        loaded,
        cast(Dataset, plan.judged_by),
        batch=plan.request.batch,
        seq=plan.seq,
        cut=plan.purpose.cut,
        metric=plan.request.metric,
        advance=clock.advance,
    )


def _measured(plan: Plan, loaded: LoadedModel, compiled: Any, inputs: Inputs, clock: Clock) -> BenchmarkReport:
    clock.begin("benchmark")
    call = plan.purpose.call
    eager, ours = call(loaded.model, loaded.model), call(compiled, loaded.model)
    return measure(
        {"eager": lambda: eager(**inputs), OURS: lambda: ours(**inputs)},
        runs=plan.request.runs,
        warmup=plan.request.warmup,
        device=loaded.model.device,
        progress=clock.advance,
        configuration=configuration_of(plan, loaded),
    )


def _shares(loaded: LoadedModel, program: Program, inputs: Inputs, *, train: bool) -> TimeShares:
    """Each executor's part of the time of the program."""
    with torch.set_grad_enabled(train):
        return program_shares(program, loaded.model, inputs)


def configuration_of(plan: Plan, loaded: LoadedModel) -> dict[str, str]:
    """What was measured, so that only equals are compared."""
    return {
        "model": plan.prepared.model_name,
        "recipe": plan.prepared.recipe.name,
        "dtype": str(loaded.source["dtype"]),
        "batch": str(plan.request.batch),
        "seq": str(plan.seq),
        **plan.purpose.configuration,
    }
