"""Write an artifact: every stage of every trace, the constant tensors of traces, the report, and the manifest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue

from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.fusion.machine_code import machine
from thunder_core.backend.runtime.argument_order import ArgumentOrder
from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.prologues.stored_prologue import skipped_statements
from thunder_core.backend.runtime.retraces import subject_name
from thunder_core.compilation.compiler import specializations_of
from thunder_core.compilation.compiler.compiler import Compiler
from thunder_core.compilation.compiler.for_device import EagerProgram
from thunder_core.foundation.errors import WrongInputs
from thunder_core.foundation.package import __version__
from thunder_core.foundation.storage.absolute import absolute
from thunder_core.foundation.storage.manifest import MANIFEST, files_of
from thunder_core.passes.autodiff.applied.value_readers import ValueReader
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative
from thunder_core.passes.autodiff.rules import names_with_rules
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.artifact.format.artifact_folder import atomic_folder, require_room
from thunder_core.workflow.artifact.format.code import code_of
from thunder_core.workflow.artifact.format.compilers import compiler_facts
from thunder_core.workflow.artifact.format.constants import ConstantConverter
from thunder_core.workflow.artifact.format.cubins import GPU, stored_cubins
from thunder_core.workflow.artifact.format.manifest import (
    CONFIG,
    CONSTANTS,
    EXAMPLE,
    GENERATION,
    SCHEMA_VERSION,
    WEIGHTS,
    CubinFacts,
    EmptyModelFacts,
    GroupFacts,
    Manifest,
    ToleranceFacts,
)
from thunder_core.workflow.artifact.format.printed import (
    PrintedStage,
    is_body,
    printed_stages,
    with_constants,
    write_stage,
)
from thunder_core.workflow.artifact.format.program_facts import (
    ProgramFacts,
    ReaderFacts,
    StageFacts,
    StoredAutogradSignature,
)
from thunder_core.workflow.artifact.format.ranks import group_facts
from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.artifact.format.readers import constants_of, reader_facts
from thunder_core.workflow.artifact.format.signature import import_key_function, sign_folder
from thunder_core.workflow.artifact.format.tensors import write_tensors
from thunder_core.workflow.artifact.format.weights import NO_WEIGHTS, StoredWeights, stored_weights
from thunder_core.workflow.artifact.gpu_kernels import kernels_on_gpus
from thunder_core.workflow.artifact.origin import Origin, TracedCalls
from thunder_core.workflow.artifact.standalone.standalone import STANDALONE, check_standalone
from thunder_core.workflow.models.loading.empty_model import (
    config_text,
    empty_model_facts,
    generation_text,
    is_rebuildable,
)
from thunder_core.workflow.report import Report, describe_environment, write_report

TRACED_HERE = (Program, EagerProgram)  # the classes of programs that were not loaded from an artifact


def write_artifact(
    folder: Path,
    compiled: object,
    origin: Origin,
    calls: TracedCalls | None = None,
    *,
    report: Report | None = None,
    include_weights: bool = False,
    force: bool = False,
    sign_key: Path | None = None,
) -> Path:
    """Write the result of `jit` or `compile`, with all its programs, as an artifact; return the folder's path.

    `include_weights` also writes the model's parameters and buffers. `sign_key` is the file of a private key to sign
    the artifact with.

    Raises `WrongInputs` if nothing was traced yet, `CannotReplay` if a program refers to an object that cannot be
    saved, `BadKey`, `OutputExists`, `OutputNotWritable` and `OutOfDisk`. If writing fails, no partial folder remains.
    """
    calls = calls or TracedCalls()
    private = None if sign_key is None else import_key_function("read_private_key")(sign_key)
    specializations = specializations_of(compiled)
    content = gather_content(specializations, calls.kernels, calls.target, include_weights=include_weights)
    order = ArgumentOrder.of(specializations.subject, calls.example)
    manifest = Manifest(
        **content_facts(content),
        **origin_facts(report),
        recipe=origin.recipe,
        options=as_json(origin.options),
        source=as_json(origin.source),
        fingerprint=origin.fingerprint,
        example=tuple(calls.example),
        keyword_order=order.keywords,
        positional=order.positional,
        random_inputs=dict(calls.random_inputs),
        dynamic=dict(calls.dynamic),
        generation=calls.generation,
        train=calls.train,
        tolerance=ToleranceFacts(**origin.tolerance) if origin.tolerance else None,
        target=calls.target,
    )
    with atomic_folder(folder, force=force) as new:
        write_content(new, content)
        write_tensors(new / EXAMPLE, calls.example)
        finish_folder(new, manifest, report, private)
    return absolute(folder)


def finish_folder(folder: Path, manifest: Manifest, report: Report | None, private: object) -> None:
    """Write the report, the manifest of all files in the folder and, if there is a private key, the signature."""
    if report is not None:
        write_report(report, folder)
    manifest = with_standalone_facts(folder, seal(folder, manifest))
    if private is not None:
        sign_folder(folder, manifest, private)


def origin_facts(report: Report | None) -> dict[str, Any]:
    """Return the manifest fields about the versions, the machine and the report."""
    return {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).replace(microsecond=0),
        "thunder": __version__,
        "torch": torch.__version__,
        "environment": (report.environment if report else describe_environment()).model_dump(mode="json"),
        "validation": report.validation_state if report else "off",
    }


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Add the size and digest of each file in a folder to the manifest, write the manifest, and return it."""
    files = {name: facts for name, facts in files_of(folder).items() if name != MANIFEST}
    manifest = manifest.model_copy(update={"files": files}).with_own_digest()
    (folder / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def with_standalone_facts(folder: Path, manifest: Manifest) -> Manifest:
    """Write the facts about programs that can run before the model is built; return the new manifest."""
    facts = check_standalone(Artifact(folder, manifest))
    if facts is None:
        return manifest
    (folder / STANDALONE).write_text(facts.model_dump_json())
    return seal(folder, manifest)


@dataclass(frozen=True, eq=False)
class ArtifactContent:
    """The content of an artifact except for the report.

    `stages` has the stages of each program with their facts, and `readers` has the readers of each program.
    `rebuildable` is the model if a model without weights can be built from its class and config; otherwise None.
    """

    specializations: Specializations
    programs: list[Program]
    stages: list[list[tuple[PrintedStage, StageFacts]]]
    readers: list[tuple[ReaderFacts, ...]]
    constants: Mapping[str, torch.Tensor]
    files: Mapping[str, bytes]
    weights: StoredWeights
    rebuildable: Any
    cubins: tuple[CubinFacts, ...]
    groups: tuple[GroupFacts, ...]


def gather_content(
    specializations: Specializations, kernels: Sequence[DeviceCode], target: str, *, include_weights: bool
) -> ArtifactContent:
    """Return the content to write; raise `CannotReplay` for objects that cannot be saved. Nothing is written.

    If `include_weights` is set, the content includes the weights, and the facts from which the model is built, so that
    the artifact can be loaded without the model.
    """
    subject: Any = specializations.subject
    groups = group_facts(specializations.compiler.settings.transforms, include_weights=include_weights)
    weights = stored_weights(subject) if include_weights else NO_WEIGHTS
    programs = programs_of(specializations)
    printed = [[*printed_stages(program, number)] for number, program in enumerate(programs)]
    converter = ConstantConverter(subject)
    named = [value for stages in printed for stage in stages for value in stage.named.values()]
    readers = [readers_of(program) for program in programs]
    read_by_backwards = [value for group in readers for reader in group for value in constants_of(reader)]
    converter.prepare([*named, *read_by_backwards])
    stages = [[(stage, with_constants(stage, converter)) for stage in program] for program in printed]
    if not target:
        kernels = kernels_on_gpus(programs, executors_of(specializations), subject_name(subject))
    cubins, images = stored_cubins(kernels)
    rebuildable = subject if include_weights and is_rebuildable(subject) else None
    return ArtifactContent(
        specializations=specializations,
        programs=programs,
        stages=stages,
        readers=[tuple(reader_facts(reader, converter) for reader in group) for group in readers],
        constants=converter.tensors,
        files={**converter.files, **images, **(empty_model_files(rebuildable) if rebuildable else {})},
        weights=weights.on(GPU) if target else weights,
        rebuildable=rebuildable,
        cubins=cubins,
        groups=groups,
    )


def executors_of(specializations: Specializations) -> tuple[Executor, ...]:
    """Return the executors that programs were compiled with; empty if one of them is not available here."""
    compiler = specializations.compiler
    return compiler.executors if isinstance(compiler, Compiler) else ()


def content_facts(content: ArtifactContent) -> dict[str, Any]:
    """Return the manifest fields that describe the content."""
    facts = [[stage_facts for _, stage_facts in stages] for stages in content.stages]
    subject = content.specializations.subject
    return {
        "subject": name_of(subject),
        "code": code_of(subject, content.programs, [stage for stages in facts for stage in stages]),
        "compiler": compiler_facts(content.specializations.compiler),
        "programs": tuple(map(program_facts, content.programs, facts, content.readers)),
        "weights": dict(content.weights.facts),
        "empty_model": EmptyModelFacts(**empty_model_facts(content.rebuildable)) if content.rebuildable else None,
        "machine": machine() if any(name.endswith(".so") for name in content.files) else "",
        "cubins": content.cubins,
        "group": content.groups[0] if content.groups else None,
        "more_groups": content.groups[1:],
    }


def write_content(folder: Path, content: ArtifactContent) -> None:
    """Write the content; raise `OutOfDisk` if the disk has too little free space for the weights."""
    require_room(folder, content.weights.size)
    write_tensors(folder / WEIGHTS, content.weights.tensors)
    for stages in content.stages:
        for stage, facts in stages:
            write_stage(folder, stage, facts)
    write_tensors(folder / CONSTANTS, content.constants)
    write_files(folder, content.files)


def programs_of(specializations: Specializations) -> list[Program]:
    """Return the programs that were traced in this process, latest first, after compiling their missing backwards."""
    programs = [program for program in specializations.programs if program.stages]
    if not programs and specializations.options.cache == "no caching":
        raise WrongInputs(
            'cache="no caching" keeps no program, so there is nothing to save', fix="compile with another cache mode"
        )
    if not programs:
        raise WrongInputs(
            "nothing has been traced yet, so there is nothing to save", fix="call the compiled function once, then save"
        )
    if any(type(program) not in TRACED_HERE for program in programs):
        raise WrongInputs(
            "this module was loaded from an artifact, which contains its programs already",
            fix="copy the artifact's folder, or compile the model again and save the result",
        )
    for program in programs:
        if program.derivative is not None:
            program.derivative.complete_for_artifact()
    return programs


def readers_of(program: Program) -> Sequence[ValueReader]:
    """Return the readers of the outside values that backwards of the program's `autograd.Function`s read."""
    return program.derivative.readers if isinstance(program.derivative, ProgramDerivative) else ()


def program_facts(program: Program, stages: list[StageFacts], readers: tuple[ReaderFacts, ...]) -> ProgramFacts:
    """Return a program as plain data."""
    return ProgramFacts(
        stages=tuple(stages),
        guards=tuple((guard.path, guard.words) for guard in program.guards),
        constraints=program.constraints,
        sharp_edges=tuple(str(getattr(edge, "what", edge)) for edge in program.sharp_edges),
        devices=tuple(sorted(devices_of(program.last("computation")))),
        derivative=stored_autograd_signature(program, readers),
        no_backward_reason=program.no_backward_reason,
        written=program.written_before_last_check(),
        caught=program.caught_errors(),
        has_effects=program.has_effects,
        is_repeatable=program.is_repeatable,
        written_origins=tuple(sorted(program.written_origins)),
        observed={path: number for path, number in program.observed.items() if math.isfinite(number)},
        numbers=tuple((index, guard.path) for index, guard in enumerate(program.guards) if guard.guards_number),
        tuples=tuple(index for index, guard in enumerate(program.guards) if guard.guards_tuple),
        skipped=skipped_statements(program),
    )


def stored_autograd_signature(program: Program, readers: tuple[ReaderFacts, ...]) -> StoredAutogradSignature | None:
    """Return the autograd signature of a program as plain data; None if the program has no derivative."""
    if program.derivative is None:
        return None
    stages = enumerate(program.stages_of("computation"))
    body_index = next(index for index, stage in stages if is_body(stage, program))
    derivative = program.derivative
    rules = names_with_rules(derivative.body)
    return StoredAutogradSignature.of(derivative.signature, body_index, rules, derivative.separate_results, readers)


def devices_of(trace: Trace) -> set[str]:
    """Return the devices of a trace's tensors."""
    tensors = (proxy for bsym in trace.bound_symbols for proxy in bsym.tensors)
    return {str(proxy.device) for proxy in (*trace.inputs, *tensors) if isinstance(proxy, TensorProxy)}


def empty_model_files(model: Any) -> dict[str, bytes]:
    """Return the files from which a model is built without its weights."""
    files = {CONFIG: config_text(model.config), GENERATION: generation_text(model)}
    return {name: text.encode() for name, text in files.items() if text}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def name_of(subject: object) -> str:
    """Return the name of a compiled function or module for display."""
    named = subject if hasattr(subject, "__qualname__") else type(subject)
    return str(getattr(named, "__qualname__", named))


def as_json(values: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return values as JSON; objects that JSON has no type for become strings."""
    return {name: _as_json(value) for name, value in values.items()}


def _as_json(value: object) -> JsonValue:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return str(value)
