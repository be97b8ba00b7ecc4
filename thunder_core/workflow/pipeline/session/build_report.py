"""The report of a run: the plan, facts about the program's traces, times, validation and benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import cache_misses, specializations_of
from thunder_core.compilation.memory import program_memory
from thunder_core.foundation.options.symbolic_arguments import ranges_in_words
from thunder_core.foundation.package import __version__
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.artifact.format.weights import stored_weights
from thunder_core.workflow.benchmark import BenchmarkReport
from thunder_core.workflow.benchmark.generation import GenerationBenchmark
from thunder_core.workflow.benchmark.rank_times import RankTimes
from thunder_core.workflow.models.inputs.input_names import MASK
from thunder_core.workflow.models.inputs.tokenizer_inputs import optional_names
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.executors import unused_executors
from thunder_core.workflow.pipeline.session.plan import Plan, transform_name
from thunder_core.workflow.pipeline.session.prepare import as_facts
from thunder_core.workflow.pipeline.session.program_time import TimeShares
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.pipeline.session.trace_stats import (
    executor_shares,
    kernel_choices,
    memory_points,
    operation_counts,
    refusals,
    trace_summaries,
)
from thunder_core.workflow.report import (
    ComparisonFacts,
    ConstraintFacts,
    ModelFacts,
    RecipeFacts,
    Report,
    StageTime,
    describe_environment,
)
from thunder_core.workflow.validation import ValidationReport
from thunder_core.workflow.validation.report import Evaluation, GenerationReport, QuantizationReport

LAST_PROGRAM = "operations, memory and traces are for the program that computes the last token"


@dataclass(frozen=True)
class Results:
    """The results of a run for the report: validation, evaluation, benchmarks, comparison, quantization and times."""

    validation: ValidationReport | None
    evaluation: Evaluation | None
    benchmark: BenchmarkReport | None
    shares: TimeShares
    further_benchmarks: tuple[BenchmarkReport, ...] = ()
    tried_sizes: str = ""
    generation: GenerationReport | None = None
    generation_benchmarks: tuple[GenerationBenchmark, ...] = ()
    comparison: ComparisonFacts | None = None
    quantization: QuantizationReport | None = None
    ranks: tuple[RankTimes, ...] = ()


def includes_weights(plan: Plan, session: Session) -> bool:
    """Whether the artifact includes the weights: on request, or if transforms changed weights that are not divided."""
    has_prepared = session.loaded.original is not None and not plan.prepared.parallel
    return plan.request.include_weights or has_prepared


def build_report(
    plan: Plan,
    session: Session,
    program: Program,
    times: Sequence[StageTime],
    results: Results,
    kernels: Sequence[DeviceCode] = (),
) -> Report:
    """Return the report of one run."""
    computation, use, request = program.last("computation"), program_memory(program, largest=True), plan.request
    programs = tuple(specializations_of(session.compiled).programs)
    notes = (*program_notes(plan, session), *kernel_note(plan, programs, kernels))
    return Report(
        thunder=__version__,
        environment=describe_environment(),
        model=model_facts(plan, session.loaded, notes),
        recipe=recipe_facts(plan),
        plan=tuple(f"{matter}: {text}" for matter, text in plan.rows()),
        degraded=(*plan.prepared.degraded, *as_facts(unused_executors(running_traces(program)))),
        sharp_edges=tuple(f"{edge.what}{f' ({edge.where})' if edge.where else ''}" for edge in program.sharp_edges),
        stages=tuple(times),
        traces=trace_summaries(program),
        executors=executor_shares(computation, results.shares, traces_after_computation(program)),
        refused=refusals(plan.prepared.executors, computation),
        choices=kernel_choices(computation),
        no_backward_reason=program.no_backward_reason,
        operations=operation_counts(computation),
        memory=memory_points(use),
        saved_bytes=use.saved,
        ranks=results.ranks,
        train=request.train,
        weights_bytes=stored_weights(session.model).size if includes_weights(plan, session) else 0,
        validation_state=validation_state(request, results),
        validation=results.validation,
        generation=results.generation,
        generation_benchmarks=results.generation_benchmarks,
        comparison=results.comparison,
        quantization=results.quantization,
        evaluation=results.evaluation,
        benchmark=results.benchmark,
        dynamic=dict(request.dynamic),
        tried_sizes=results.tried_sizes,
        programs=len(programs),
        constraints=tuple(constraint_facts(session.compiled)),
        further_benchmarks=results.further_benchmarks,
    )


def validation_state(request: Request, results: Results) -> Literal["validated", "pending", "off"]:
    """Return the state of a run's validation: `pending` for a cross-compiled program, which did not run."""
    if request.target:
        return "pending"
    return "off" if results.validation is None and results.generation is None else "validated"


def running_traces(program: Program) -> list[Trace]:
    """Return the computation, the tail and the backwards."""
    return [program.last("computation"), *traces_after_computation(program)]


def traces_after_computation(program: Program) -> list[Trace]:
    """Return the tail and the backwards, which run after the computation."""
    backwards = {stage.has_cotangent: stage.trace for stage in program.stages_of("backward")}
    return [*program.traces("tail"), *backwards.values()]


def constraint_facts(compiled: object) -> Iterator[ConstraintFacts]:
    """Yield the constraints of all programs as rows of the report; programs are numbered as in the artifact."""
    for number, program in enumerate(specializations_of(compiled).programs):
        for constraint in program.constraints:
            shown = {name: value for name, value in vars(constraint).items() if name in ConstraintFacts.model_fields}
            yield ConstraintFacts(program=number, **shown)


def program_notes(plan: Plan, session: Session) -> tuple[str, ...]:
    """Return notes on the number of programs; each program takes time to trace and compile."""
    if plan.generation is not None:
        count = len(specializations_of(session.compiled).programs)
        programs = "1 program generates" if count == 1 else f"{count} programs generate"
        return (f"{programs}: {plan.generation}", LAST_PROGRAM)
    optional = optional_names(session.tokenizer_names) if plan.data is None else plan.data.from_tokenizer - {MASK}
    names = ", ".join(() if plan.request.train or plan.request.target else sorted(optional))
    if plan.request.dynamic:
        count = len(specializations_of(session.compiled).programs)
        programs = "one program serves" if count == 1 else f"{count} programs serve"
        served = f"{programs} {ranges_in_words(plan.request.dynamic)}"
        return (f"{served}, with and without {names}" if names and count > 1 else served,)
    traced = cache_misses(session.compiled)
    if names and traced > 1:
        return (f"{traced} programs serve calls with and without {names}",)
    return () if traced == 1 else (f"the model was traced {traced} times for inputs of the same shapes",)


def kernel_note(plan: Plan, programs: Sequence[Program], kernels: Sequence[DeviceCode]) -> tuple[str, ...]:
    """Return a note on the number of kernels for a target: kernels of the artifact, and kernels in compiled regions."""
    target = plan.request.target
    if not target:
        return ()
    counts = Counter(code.executor for code in kernels)
    for executor in (named.executor for named in plan.prepared.executors if named.executor is not None):
        traces = (trace for program in programs for trace in running_traces(program))
        counts[executor.name] += len(frozenset[bytes]().union(*map(executor.kernels_in_regions, traces)))
    parts = ", ".join(f"{name} {count}" for name, count in counts.most_common() if count)
    total = f"{counts.total()} kernel{'' if counts.total() == 1 else 's'} compiled for {target}"
    return (f"{total}{f' ({parts})' if parts else ''}; nothing was run",)


def model_facts(plan: Plan, loaded: LoadedModel, notes: tuple[str, ...]) -> ModelFacts:
    """Return the facts about the optimized model."""
    return ModelFacts(
        name=plan.prepared.model_name,
        family=loaded.config.model_type,
        task=loaded.task,
        parameters=sum(parameter.numel() for parameter in (loaded.original or loaded.model).parameters()),
        dtype=str(loaded.source["dtype"]),
        device=plan.device,
        notes=(*loaded.notes, *notes),
        caveats=loaded.caveats,
    )


def recipe_facts(plan: Plan) -> RecipeFacts:
    """Return the facts about the recipe."""
    prepared = plan.prepared
    return RecipeFacts(
        name=prepared.recipe.name,
        options=dict(prepared.options),
        transforms=tuple(transform_name(transform) for transform in prepared.transforms),
        lookasides=tuple(lookaside.name for lookaside in prepared.recipe.all_lookasides()),
        executors=tuple(candidate.name for candidate in prepared.executors if candidate.executor is not None),
        without=prepared.recipe.composition.without,
    )
