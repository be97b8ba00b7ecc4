"""Plan a request: a dry run prints only the plan, and each run prints it first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from thunder_core.foundation.options.whole_number import is_whole_number
from thunder_core.workflow.benchmark.machine_load import observe_load
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.request.destination import check_destination, choose_destination
from thunder_core.workflow.pipeline.request.generation_lengths import lengths_of
from thunder_core.workflow.pipeline.request.launch import Launch, launch_of_process
from thunder_core.workflow.pipeline.request.recipes import require_keepable
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.request_checks import check_request, needs_no_weights
from thunder_core.workflow.pipeline.request.samples import real_samples
from thunder_core.workflow.pipeline.session.dynamic import require_dimensions, require_positions
from thunder_core.workflow.pipeline.session.executor_comparison import (
    comparing_executors,
    refuse_comparison,
    without_comparison,
)
from thunder_core.workflow.pipeline.session.memory_plan import plan_memory
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.prepare import PreparedModel, prepare
from thunder_core.workflow.pipeline.session.progress import CALIBRATE, COMPARE, EVALUATE, FIRST_CALLS, QUALITY, STAGES
from thunder_core.workflow.pipeline.session.quantization_options import require_quantizing
from thunder_core.workflow.pipeline.session.ranks_options import require_fitting_ranks
from thunder_core.workflow.pipeline.session.sizes import size_to_trace


def plan(request: Request, *, dry_run: bool = False) -> Plan:
    """Plan a request, without heavy work and without writing anything.

    With `dry_run`, the plan is not carried out, so weights may be missing. While planning, the load of other processes
    is measured. Raises every error that can be found early: in names, sizes, files of the model and the destination.
    """
    return with_memory(outline(request, dry_run=dry_run))


def outline(request: Request, *, dry_run: bool = False) -> Plan:
    """Plan a request like `plan`, but without the memory of the stages, which would import the model's code."""
    with observe_load() as load:
        planned = _outline(request, dry_run=dry_run)
    return replace(planned, load=load)


def _require_fitting_recipe(request: Request, prepared: PreparedModel, launch: Launch | None) -> None:
    """Raise an error for a recipe that cannot be saved, or that does not fit the request's options or ranks."""
    require_keepable(prepared.recipe)
    refuse_comparison(request, prepared)
    require_quantizing(request, prepared)
    require_fitting_ranks(request, prepared, launch)
    require_dimensions(prepared.recipe, request.dynamic)


def with_memory(outlined: Plan) -> Plan:
    """Add the memory of the stages to a plan; this imports the code of the model and builds it without weights."""
    tokens = 0 if outlined.generation is None else outlined.generation.new_tokens
    memory = plan_memory(outlined.prepared, outlined.purpose, outlined.largest, outlined.stages, tokens)
    return replace(outlined, memory=memory)


def _outline(request: Request, *, dry_run: bool) -> Plan:
    check_request(request, dry_run=dry_run)
    check_destination(request)
    if request.target:
        request = replace(request, validate=False, benchmark=False)
    prepared = prepare(request, config_is_enough=needs_no_weights(request, dry_run=dry_run))
    launch = launch_of_process()
    _require_fitting_recipe(request, prepared, launch)
    comparing = prepared if comparing_executors(prepared) else None
    data, evaluation_data, calibration = (
        real_samples(option, file, lambda: prepared.loading.origin, trust_remote_code=request.model.trust_remote_code)
        for option, file in named_files(request)
    )
    config = prepared.loading.config
    generation = lengths_of(config, request) if request.generates else None
    if generation is None:
        size = size_to_trace(config, request, (data, evaluation_data), prepared.usual_sequence)
    else:
        size = InputSize(generation.batch, generation.prompt_length)
    require_positions(config, request.dynamic, size)
    stages = stages_of(request, compares=comparing is not None, quantizes=prepared.quantize is not None)
    return Plan(
        request=request,
        prepared=without_comparison(prepared),
        size=size,
        data=data,
        evaluation_data=evaluation_data,
        calibration=calibration,
        stages=stages,
        destination=destination_of(request, prepared),
        generation=generation,
        comparing=comparing,
        launch=launch,
    )


def destination_of(request: Request, prepared: PreparedModel, parent: Path | None = None) -> Path:
    """Return the folder of the artifact: the requested folder, or a free name in the working directory."""
    purpose = "-train" if request.train else "-generate" if request.generates else ""
    return choose_destination(
        request.out,
        force=request.force,
        model=prepared.model_name,
        recipe=f"{'+'.join(part.title for part in prepared.recipe.components)}{purpose}",
        parent=parent,
    )


def named_files(request: Request) -> Iterator[tuple[str, Path | None]]:
    """Yield each option that may name a file of samples (`--input`, `--eval`, `--calibrate`), and the file or None."""
    yield "--input", request.input
    yield "--eval", request.evaluate
    yield (
        "--calibrate",
        None if is_whole_number(request.calibrate) or not request.calibrate else Path(request.calibrate),
    )


def has_first_calls(request: Request) -> bool:
    """Whether the first calls of the compiled model are a separate stage."""
    return not (request.target or request.train)


def stages_of(request: Request, *, compares: bool = False, quantizes: bool = False) -> tuple[str, ...]:
    """Return the stages of a request in order, with additional stages for comparing executors and for quantization."""
    optional_stages = {
        CALIBRATE: quantizes and bool(request.calibrate),
        QUALITY: quantizes and request.validate,
        FIRST_CALLS: has_first_calls(request),
        COMPARE: compares,
        "validate": request.validate,
        EVALUATE: request.evaluate is not None,
        "benchmark": request.benchmark,
    }
    early, late = STAGES[: STAGES.index("trace")], STAGES[STAGES.index("trace") : STAGES.index("validate")]
    stages = (*early, CALIBRATE, QUALITY, *late, COMPARE, "validate", EVALUATE, "benchmark", "write")
    return tuple(stage for stage in stages if optional_stages.get(stage, True))
