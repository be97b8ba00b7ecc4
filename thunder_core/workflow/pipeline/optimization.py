"""An optimization, stage by stage: load, check, trace, transform, compile, validate, benchmark, write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch

from thunder_core.backend.claiming.tuning import tuning
from thunder_core.foundation.errors import OutputExists
from thunder_core.workflow.artifact.origin import Origin
from thunder_core.workflow.artifact.write import write_artifact
from thunder_core.workflow.benchmark import threads_in_use
from thunder_core.workflow.models.memory.memory_guard import limit_private_memory
from thunder_core.workflow.pipeline.call_optimization import CallOptimization
from thunder_core.workflow.pipeline.failures import stage_failures
from thunder_core.workflow.pipeline.generation_optimization import GenerationOptimization
from thunder_core.workflow.pipeline.quantization import Quantization
from thunder_core.workflow.pipeline.ranks.link import link_ranks
from thunder_core.workflow.pipeline.ranks.session import RanksSession
from thunder_core.workflow.pipeline.ranks_generation import RanksGeneration
from thunder_core.workflow.pipeline.ranks_opening import open_ranks
from thunder_core.workflow.pipeline.ranks_optimization import RanksOptimization, for_all_ranks
from thunder_core.workflow.pipeline.request.launch import Launch
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.build_report import build_report, includes_weights, running_traces
from thunder_core.workflow.pipeline.session.clock import StageClock
from thunder_core.workflow.pipeline.session.executors import unused_executors
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.planning import destination_of, plan
from thunder_core.workflow.pipeline.session.prepare import as_facts, require_not_degraded
from thunder_core.workflow.pipeline.session.progress import Progress, SilentProgress
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.report import Report
from thunder_core.workflow.report.search import SearchReport
from thunder_core.workflow.validation.report import QuantizationReport

Workflow: TypeAlias = CallOptimization | GenerationOptimization


@dataclass(frozen=True)
class Outcome:
    """The result of an optimization: its report, the artifact's folder, and the compiled module."""

    report: Report
    artifact: Path
    compiled: torch.nn.Module


def optimize(request: Request, progress: Progress | None = None) -> Outcome:
    """Optimize a model with a recipe, validate and measure it, and write the artifact.

    Raises a `ThunderError` for every problem that a user can fix; in that case no artifact is written.
    """
    return carry_out(plan(request), progress)


def carry_out(plan: Plan, progress: Progress | None = None, search: SearchReport | None = None) -> Outcome:
    """Carry out a planned optimization, and return its report, its artifact and the compiled module.

    The report contains the `search` that chose the recipe, if there was a search. Raises `OutOfMemory` before anything
    is loaded if the plan does not fit.
    """
    clock = StageClock(progress or SilentProgress())
    with apply_settings(plan, clock):
        return _carry_out(plan, clock, search)


@contextmanager
def apply_settings(plan: Plan, clock: StageClock) -> Iterator[None]:
    """Apply a plan's number of threads and tuning time while the block runs; errors name the stage.

    On Linux, the block may use the memory that is free when it starts. Raises `OutOfMemory` if the plan does not fit.
    """
    if plan.memory_error is not None:
        raise plan.memory_error
    mapped = plan.memory.weights if plan.memory and plan.memory.is_mapped else 0
    threads = threads_in_use(plan.request.threads)
    with (
        stage_failures(lambda: clock.stage or "the start"),
        limit_private_memory(mapped),
        threads,
        tuning(plan.request.tune),
    ):
        yield


def open_workflow(plan: Plan, clock: StageClock) -> tuple[Plan, Workflow, QuantizationReport | None]:
    """Load the model of a plan, and quantize it if the recipe quantizes.

    Returns the plan with the names of the layers that were left in floating point, the workflow, and the quantization
    report, which is None if there was nothing to compare.
    """
    clock.begin("load")
    quantization = Quantization(plan, clock.begin, clock.advance)
    plan, session, quality = quantization.check_quality(quantization.open_session())
    return plan, single_process_workflow(plan, session, clock), quality


def _carry_out(plan: Plan, clock: StageClock, search: SearchReport | None) -> Outcome:
    if plan.launch is not None and plan.prepared.parallel:
        return _carry_out_on_ranks(plan, plan.launch, clock)
    plan, workflow, quality = open_workflow(plan, clock)
    return _finish(plan, workflow, clock, quality, search)


def _carry_out_on_ranks(plan: Plan, launch: Launch, clock: StageClock) -> Outcome:
    """Carry out a plan as the first of several ranks, which sends the other ranks their commands."""
    clock.begin("load")
    with link_ranks(launch, plan.prepared.loading.device) as link:
        plan, session, quality = open_ranks(plan, link, clock.begin, clock.advance)
        outcome = _finish(plan, ranks_workflow(plan, session, clock), clock, quality)
        link.finish()
    return outcome


def _finish(
    plan: Plan,
    workflow: Workflow,
    clock: StageClock,
    quality: QuantizationReport | None = None,
    search: SearchReport | None = None,
) -> Outcome:
    """Carry out the rest of a plan after its model is loaded."""
    request = plan.request
    with workflow.ready():
        clock.begin("trace")
        program = workflow.acquire()
        if request.strict:
            require_not_degraded(plan.prepared.recipe, as_facts(unused_executors(running_traces(program))))
        comparison = workflow.compare_executors()
        results = replace(workflow.results(program), comparison=comparison, quantization=quality)
    clock.begin("write")
    while True:
        plan = replace(plan, destination=destination_of(request, plan.prepared, plan.destination.parent))
        report = build_report(plan, workflow.session, program, clock.times, results, workflow.kernels)
        report = report.model_copy(update={"search": search})
        try:
            _write(plan, workflow, report)
            break
        except OutputExists:  # another run may have used the free name in the meantime
            if request.out is not None:
                raise
    clock.stop()
    return Outcome(report, plan.destination, workflow.session.compiled)


def single_process_workflow(plan: Plan, session: Session, clock: StageClock) -> Workflow:
    """Return the workflow of a plan: the optimization of single calls, or of generation."""
    if plan.generation is None:
        return CallOptimization(plan, session, clock)
    return GenerationOptimization(plan, session, clock, plan.generation)


def ranks_workflow(plan: Plan, session: RanksSession, clock: StageClock) -> Workflow:
    """Return the workflow of a plan for several ranks: the optimization of single calls, or of generation."""
    if plan.generation is None:
        return RanksOptimization(for_all_ranks(plan), session, clock)
    return RanksGeneration(plan, session, clock, plan.generation)


def _write(plan: Plan, workflow: Workflow, report: Report) -> None:
    """Write the artifact of an optimization to the plan's destination."""
    request, recipe, loaded = plan.request, plan.prepared.recipe, workflow.session.loaded
    origin = Origin(
        source={**loaded.source, "device": plan.device},
        fingerprint=loaded.fingerprint,
        recipe=recipe.name,
        options=recipe.options,
        tolerance=asdict(workflow.session.tolerance(loaded.model.dtype)),
    )
    write_artifact(
        plan.destination,
        workflow.session.compiled,
        origin,
        workflow.traced_calls(),
        report=report,
        include_weights=includes_weights(plan, workflow.session),
        force=request.force,
        sign_key=request.sign_key,
    )
