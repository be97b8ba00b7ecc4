"""Find the first wrong line of a model with a recipe, or of an artifact, and write its reproduction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.copies import copy_values
from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import last_program, specializations_of
from thunder_core.foundation.errors import ArtifactDamaged, BadOption
from thunder_core.foundation.storage.absolute import absolute
from thunder_core.workflow.artifact.format.artifact_folder import atomic_folder
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.artifact.format.signature import require_authentic
from thunder_core.workflow.artifact.trust.consent import NO_CONSENT, Consent
from thunder_core.workflow.fault_localization.evidence import evidence_of
from thunder_core.workflow.fault_localization.examination import examine, preserve_call_state
from thunder_core.workflow.fault_localization.non_finite import non_finite_lines
from thunder_core.workflow.fault_localization.probes.calls import SubjectCall
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.reproduction import write_reproduction
from thunder_core.workflow.fault_localization.stored_programs import first_stored_fault, stored_backward_fault
from thunder_core.workflow.fault_localization.trace_examination import without_freeing
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.pipeline.failures import stage_failures
from thunder_core.workflow.pipeline.generation.generation_coverage import GenerationCoverage
from thunder_core.workflow.pipeline.generation_optimization import GenerationOptimization
from thunder_core.workflow.pipeline.request.debug_request import DebugRequest, check_debug_request, require_absent
from thunder_core.workflow.pipeline.request.purpose import Purpose, purpose_of
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.application import apply
from thunder_core.workflow.pipeline.session.clock import StageClock
from thunder_core.workflow.pipeline.session.dynamic import arguments_of, require_dimensions, require_positions
from thunder_core.workflow.pipeline.session.internal_check import allowance_of, check_calls, has_traces
from thunder_core.workflow.pipeline.session.planning import plan
from thunder_core.workflow.pipeline.session.prepare import prepare
from thunder_core.workflow.pipeline.session.progress import Progress, SilentProgress
from thunder_core.workflow.pipeline.session.range_coverage import suppress_shortfalls
from thunder_core.workflow.pipeline.session.session import Session, open_model, open_saved
from thunder_core.workflow.pipeline.session.sizes import size_to_trace
from thunder_core.workflow.pipeline.validate import size_and_seed_of
from thunder_core.workflow.validation.internal_check import Fault, InternalCheck, NonFiniteLine
from thunder_core.workflow.validation.report_facts import ReportFacts

NEW_TOKENS = 2  # the second token uses the cache
NO_TRACES, BY_JIT = "the program has no traces", "use a recipe that traces with jit"


class ReproductionFacts(ReportFacts):
    """A folder that reproduces a fault, and the number of its operations."""

    fault: int
    """The number of the fault, from 0."""
    folder: Path
    operations: int
    reproduces: bool
    """Whether the executor is also wrong when it compiles only these operations."""


class Diagnosis(ReportFacts):
    """The results of checking a model with a recipe, or an artifact, on one input."""

    subject: str
    recipe: str
    internal_check: InternalCheck
    non_finite: tuple[NonFiniteLine, ...] = ()
    searches_non_finite: bool = False
    """Whether each line was searched for NaN and infinities."""
    reproductions: tuple[ReproductionFacts, ...] = ()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The wrong lines."""
        return self.internal_check.faults

    @property
    def is_clean(self) -> bool:
        """Whether there is no wrong line and no non-finite value."""
        return not (self.faults or self.non_finite)


def debug_model(request: Request, debug_request: DebugRequest, progress: Progress | None = None) -> Diagnosis:
    """Check a model with a recipe on one input, without a time limit.

    For ranges of sizes, the program that accepts the input is checked; for generation, each program for a prompt and
    two tokens. Raises the errors of `optimize` for a request that cannot be carried out, and `OutputExists` if the
    folder exists.
    """
    check_debug_request(debug_request, generates=request.generates)
    clock = StageClock(progress or SilentProgress())
    with stage_failures(lambda: clock.stage or "the start"):
        clock.begin("load")
        diagnosis = debug_generation(request, clock) if request.generates else debug_call(request, debug_request, clock)
        clock.stop()
        return diagnosis


def debug_call(request: Request, debug_request: DebugRequest, clock: StageClock) -> Diagnosis:
    """Check a single call of a model with a recipe."""
    prepared = prepare(request)
    require_dimensions(prepared.recipe, request.dynamic)
    session = open_model(prepared, Purpose(request.train, padded=prepared.pads_texts))
    size = size_to_trace(prepared.loading.config, request, (), prepared.usual_sequence)
    require_positions(prepared.loading.config, request.dynamic, size)
    if request.dynamic:
        arguments = arguments_of(session, prepared.recipe, request.dynamic, size)
        session = replace(session, compile=partial(apply, prepared, symbolic=arguments))
    inputs = session.inputs(size)
    with session.ready(), torch.set_grad_enabled(request.train), suppress_shortfalls():
        clock.begin("compile")
        program = compiled_program(session, inputs)
        clock.begin("examine")
        internal_check = examine(program, session.model, (), dict(inputs), allowance=allowance_of(session))
        diagnosis = Diagnosis(subject=prepared.model_name, recipe=prepared.recipe.name, internal_check=internal_check)
        return with_details(diagnosis, session, program, inputs, debug_request, recipe_in_words(request))


def debug_generation(request: Request, clock: StageClock) -> Diagnosis:
    """Check the computation of each program that `generate` calls for a prompt and two tokens."""
    planned = plan(request)
    assert planned.generation is not None
    prepared = planned.prepared
    workflow = GenerationOptimization(planned, open_model(prepared, planned.purpose), clock, planned.generation)
    with workflow.ready():
        clock.begin("compile")
        workflow.acquire()
        clock.begin("examine")
        coverage = GenerationCoverage(workflow.session, planned.generation)
        internal_check = check_calls(workflow.session, lambda: coverage.trace(NEW_TOKENS))
    if internal_check is None:
        raise BadOption(NO_TRACES, fix=BY_JIT)
    return Diagnosis(subject=prepared.model_name, recipe=prepared.recipe.name, internal_check=internal_check)


def debug_artifact(
    folder: Path, debug_request: DebugRequest, *, consent: Consent = NO_CONSENT, progress: Progress | None = None
) -> Diagnosis:
    """Compile the model of an artifact again with its recipe, and compare the stored program with the new program.

    Raises the errors of `load`, and `WrongInputs` if the artifact does not record its inputs.
    """
    check_debug_request(debug_request)
    clock = StageClock(progress or SilentProgress())
    with stage_failures(lambda: clock.stage or "the start"):
        clock.begin("load")
        artifact = open_artifact(folder)
        require_authentic(artifact, consent)
        require_single_calls(artifact)
        size, seed = size_and_seed_of(artifact, real_inputs=False)
        session = open_saved(artifact, purpose_of(artifact.manifest, cut=True), consent)
        inputs = session.inputs(size, 0, seed)
        with session.ready(), torch.set_grad_enabled(artifact.manifest.train):
            clock.begin("compile")
            specializations = specializations_of(session.compiled)
            session.call(inputs)
            stored = last_program(session.compiled)
            program = specializations.compiler(session.model, (), dict(inputs))
            clock.begin("examine")
            internal_check = examine(program, session.model, (), dict(inputs), allowance=allowance_of(session))
            faults = (*stored_faults(stored, program, session, inputs), *display_faults(artifact))
            internal_check = internal_check.model_copy(update={"faults": (*internal_check.faults, *faults)})
            recipe = artifact.manifest.recipe or "default"
            diagnosis = Diagnosis(subject=str(folder), recipe=recipe, internal_check=internal_check)
            return with_details(diagnosis, session, program, inputs, debug_request, recipe)


def require_single_calls(artifact: Artifact) -> None:
    """Raise `BadOption` for an artifact that was made for generation."""
    if artifact.manifest.generation is not None:
        raise BadOption(
            f"{artifact.folder} was made for generation, which `thunder debug` does not examine",
            fix="debug its model and its recipe instead",
        )


def display_faults(artifact: Artifact) -> Iterator[Fault]:
    """Yield a fault for each running stage whose displayed lines differ from the lines that run."""
    for stage in (stage for program in artifact.manifest.programs for stage in program.stages if stage.runs):
        try:
            artifact.listing(stage)
        except ArtifactDamaged as error:
            yield Fault(kind="stored", by="thunder", trace=stage.trace, line=stage.lines_file, difference=error.what)


def recipe_in_words(request: Request) -> str:
    """Return the recipes of a request as a string that `find_recipe` accepts."""
    return " + ".join(map(str, request.recipe if isinstance(request.recipe, tuple) else (request.recipe,)))


def compiled_program(session: Session, inputs: Inputs) -> Program:
    """Return the program for inputs; raise `BadOption` for a program without traces.

    The model is called twice, because it may change itself at its first call.
    """
    for _ in range(2):
        session.call(inputs)
        session.release()
    program = last_program(session.compiled)
    if not has_traces(program):
        raise BadOption(NO_TRACES, fix=BY_JIT)
    return program


def stored_faults(stored: Program, program: Program, session: Session, inputs: Inputs) -> Iterator[Fault]:
    """Yield the first wrong line of a stored program, compared with the `program` that was compiled again."""
    call = SubjectCall(session.model, (), dict(inputs))
    with preserve_call_state(call):
        fault = first_stored_fault(stored, program, call)
        if fault is None and session.purpose.train:
            fault = stored_backward_fault(stored, program, call, lambda function: step_by(function, session, inputs))
            session.release()
    if fault is not None:
        yield fault


def step_by(program: Program, session: Session, inputs: Inputs) -> Callable[[], object]:
    """Return a training step that runs one program."""

    def forward(**kwargs: object) -> object:
        return program.run(*program.prepare(session.model, (), kwargs))

    step = session.call_of(forward)
    return lambda: step(**inputs)


def with_details(
    diagnosis: Diagnosis,
    session: Session,
    program: Program,
    inputs: Inputs,
    debug_request: DebugRequest,
    recipe: str,
) -> Diagnosis:
    """Return the diagnosis with the requested details: lines that create non-finite values, reproductions of faults."""
    findings: dict[str, Any] = {}
    if debug_request.nan:
        findings["searches_non_finite"] = True
        findings["non_finite"] = tuple(first_non_finite(program, session.model, inputs))
    if debug_request.out is not None and diagnosis.faults:
        executors = specializations_of(session.compiled).compiler.settings.executors
        findings["reproductions"] = write_reproductions(
            diagnosis.faults, program, session.model, inputs, debug_request.out, executors, recipe
        )
    return diagnosis.model_copy(update=findings)


def first_non_finite(program: Program, model: torch.nn.Module, inputs: Inputs) -> Iterator[NonFiniteLine]:
    """Yield the lines that first create NaN or infinities, in eager PyTorch and in the program."""
    call = SubjectCall(model, (), dict(inputs))
    with preserve_call_state(call):
        prepared, _ = program.prepare(model, *call.copy_arguments())
        values = copy_values(inputs_by_name(program.last("computation"), prepared))
        states = RandomStates.now(values)
        first, *_, claimed = without_freeing(program.traces("computation"))
        yield from chain(
            non_finite_lines(first, values, states, "eager PyTorch"),
            non_finite_lines(claimed, values, states, "thunder"),
        )


class NothingToWriteError(Exception):
    """Raised if no fault can be reproduced, so that the new folder is removed."""


def write_reproductions(
    faults: tuple[Fault, ...],
    program: Program,
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    out: Path,
    executors: tuple[Executor, ...],
    recipe: str,
) -> tuple[ReproductionFacts, ...]:
    """Write a folder for each fault that can be reproduced; a single fault's folder is `out` itself.

    The folder `out` is complete or absent. It is absent if no fault can be reproduced.
    """
    reproductions: list[ReproductionFacts] = []
    out = absolute(out)
    with suppress(NothingToWriteError), atomic_folder(out, force=False, require_free=require_absent) as new:
        for number, fault in enumerate(faults):
            evidence = evidence_of(program, fault, model, (), dict(inputs))
            name = "" if len(faults) == 1 else f"fault-{number}"
            written = None if evidence is None else write_reproduction(new / name, fault, evidence, executors, recipe)
            if written is not None:
                facts = ReproductionFacts(
                    fault=number, folder=out / name, operations=written.operations, reproduces=written.reproduces
                )
                reproductions.append(facts)
        if not reproductions:
            raise NothingToWriteError
    return tuple(reproductions)
