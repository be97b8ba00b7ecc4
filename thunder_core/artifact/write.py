"""Writing an artifact: every stage of every trace, the tensors that traces hold, the report, and the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue

from thunder_core.artifact.code import code_of
from thunder_core.artifact.compilers import compiler_facts
from thunder_core.artifact.constants import Keeper
from thunder_core.artifact.cubins import GPU, kept_cubins
from thunder_core.artifact.manifest import (
    CONFIG,
    CONSTANTS,
    EXAMPLE,
    GENERATION,
    SCHEMA_VERSION,
    WEIGHTS,
    CubinFacts,
    Manifest,
    ProgramFacts,
    ShellFacts,
    StageFacts,
    StoredAutogradSignature,
    ToleranceFacts,
)
from thunder_core.artifact.place import require_room, whole_folder
from thunder_core.artifact.printed import PrintedStage, is_body, printed_stages, with_constants, write_stage
from thunder_core.artifact.read import Artifact
from thunder_core.artifact.signature import computing, sign_folder
from thunder_core.artifact.standalone import STANDALONE, check_standalone
from thunder_core.artifact.tensors import write_tensors
from thunder_core.artifact.weights import NOTHING, KeptWeights, kept_weights
from thunder_core.claiming.device_code import DeviceCode
from thunder_core.compiler import specializations_of
from thunder_core.errors import WrongInputs
from thunder_core.fusion.machine_code import machine
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.trace import Trace
from thunder_core.models.shell import config_text, generation_text, is_rebuildable, shell_of
from thunder_core.package import __version__
from thunder_core.report import Report, describe_environment, write_report
from thunder_core.runtime.compiled import Specializations
from thunder_core.runtime.program import Program
from thunder_core.storage.manifest import MANIFEST, files_of


def write_artifact(
    folder: Path,
    *,
    compiled: Any,
    source: Mapping[str, object],
    fingerprint: str,
    recipe: str,
    options: Mapping[str, object],
    report: Report | None = None,
    example: Mapping[str, torch.Tensor] | None = None,
    drawn: Mapping[str, int] | None = None,
    dynamic: Mapping[str, tuple[int, int]] | None = None,
    train: bool = False,
    tolerance: Mapping[str, float] | None = None,
    include_weights: bool = False,
    target: str = "",
    kernels: Sequence[DeviceCode] = (),
    force: bool = False,
    sign_key: Path | None = None,
) -> Path:
    """Write what `jit` or `compile` returned, with all programs that it has traced, as a folder; returns its path.

    `source` is plain data from which the model is rebuilt (`LoadedModel.source`), empty where there is none;
    `fingerprint` that of the model's structure; `example` the keyword arguments that were traced, and `drawn` what
    they were drawn with, and `dynamic` the ranges of sizes that it is to serve; `train` says that it is for training;
    `tolerance` by what it is validated. With `include_weights` the model's parameters and buffers are written as well.
    `kernels` are machine code for a GPU of the architecture `target` (`sm_90`), which need not be here. It is signed
    with the private key in the file `sign_key`.

    Raises `WrongInputs` where nothing was traced yet, `CannotReplay` for a program that refers to an object which
    cannot be kept, `BadKey`, `OutputExists`, `OutputNotWritable` and `OutOfDisk`. Nothing is left of a folder that is
    not whole.
    """
    private = None if sign_key is None else computing("read_private_key")(sign_key)
    weights = kept_weights(specializations_of(compiled).subject) if include_weights else NOTHING
    parts = gather_parts(specializations_of(compiled), weights.on(GPU) if target else weights, kernels, include_weights)
    manifest = Manifest(
        **what_runs(parts),
        **when_and_where(report),
        recipe=recipe,
        options=as_json(options),
        source=as_json(source),
        fingerprint=fingerprint,
        example=tuple(example or ()),
        drawn=dict(drawn or {}),
        dynamic=dict(dynamic or {}),
        train=train,
        tolerance=ToleranceFacts(**tolerance) if tolerance else None,
        target=target,
    )
    with whole_folder(folder, force=force) as new:
        write_parts(new, parts)
        write_tensors(new / EXAMPLE, example or {})
        if report is not None:
            write_report(report, new)
        whole = with_finding(new, sealed(new, manifest))
        if private is not None:
            sign_folder(new, whole, private)
    return Path(folder).expanduser().absolute()


def when_and_where(report: Report | None) -> dict[str, Any]:
    """The facts that the manifest says of this version and this machine, and of what the report says of both."""
    return {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).replace(microsecond=0),
        "thunder": __version__,
        "torch": torch.__version__,
        "environment": (report.environment if report else describe_environment()).model_dump(mode="json"),
        "validation": report.validation_state if report else "off",
    }


def sealed(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest of all that is in a folder, which is written there."""
    files = {name: facts for name, facts in files_of(folder).items() if name != MANIFEST}
    whole = manifest.model_copy(update={"files": files}).sealed()
    (folder / MANIFEST).write_bytes(whole.to_bytes())
    return whole


def with_finding(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest with what was found of the programs that run before their model is built, if there are any."""
    facts = check_standalone(Artifact(folder, manifest))
    if facts is None:
        return manifest
    (folder / STANDALONE).write_text(facts.model_dump_json())
    return sealed(folder, manifest)


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of an artifact but for the report: all that has to be had of the process that compiled it.

    `stages` has each program's stages with their facts; `shell` is the model where it can be built without its weights.
    """

    specializations: Specializations
    programs: list[Program]
    stages: list[list[tuple[PrintedStage, StageFacts]]]
    constants: Mapping[str, torch.Tensor]
    files: Mapping[str, bytes]
    weights: KeptWeights
    shell: Any
    cubins: tuple[CubinFacts, ...]


def gather_parts(
    specializations: Specializations, weights: KeptWeights, kernels: Sequence[DeviceCode], alone: bool
) -> Parts:
    """Everything that is to be written; nothing is written yet, and what cannot be kept is refused.

    What is to be loaded `alone` brings along how its model is built.
    """
    programs = programs_of(specializations)
    printed = [[*printed_stages(program, number)] for number, program in enumerate(programs)]
    keeper = Keeper(specializations.subject)
    keeper.prepare([value for stages in printed for stage in stages for value in stage.named.values()])
    stages = [[(stage, with_constants(stage, keeper)) for stage in one] for one in printed]
    cubins, images = kept_cubins(kernels)
    subject: Any = specializations.subject
    shell = subject if alone and is_rebuildable(subject) else None
    files = {**keeper.files, **images, **(shell_files(shell) if shell else {})}
    return Parts(specializations, programs, stages, keeper.tensors, files, weights, shell, cubins)


def what_runs(parts: Parts) -> dict[str, Any]:
    """The facts that the manifest says of the parts."""
    facts = [[one for _, one in stages] for stages in parts.stages]
    subject = parts.specializations.subject
    return {
        "subject": name_of(subject),
        "code": code_of(subject, parts.programs, [stage for stages in facts for stage in stages]),
        "compiler": compiler_facts(parts.specializations.compiler),
        "programs": tuple(program_facts(*pair) for pair in zip(parts.programs, facts, strict=True)),
        "weights": dict(parts.weights.facts),
        "shell": ShellFacts(**shell_of(parts.shell)) if parts.shell else None,
        "machine": machine() if any(name.endswith(".so") for name in parts.files) else "",
        "cubins": parts.cubins,
    }


def write_parts(folder: Path, parts: Parts) -> None:
    """Write all parts, if there is room."""
    require_room(folder, parts.weights.size)
    write_tensors(folder / WEIGHTS, parts.weights.tensors)
    for stages in parts.stages:
        for stage, facts in stages:
            write_stage(folder, stage, facts)
    write_tensors(folder / CONSTANTS, parts.constants)
    write_files(folder, parts.files)


def programs_of(specializations: Specializations) -> list[Program]:
    """The programs that were traced in this process, the latest first, each with a backward where it has any."""
    programs = [program for program in specializations.programs if program.stages]
    if not programs and specializations.options.cache == "no caching":
        raise WrongInputs(
            'cache="no caching" keeps no program, so there is nothing to save', fix="compile it with another mode"
        )
    if not programs:
        raise WrongInputs("nothing has been traced yet, so there is nothing to save", fix="call it once, then save it")
    if any(type(program) is not Program for program in programs):
        raise WrongInputs(
            "this was loaded from an artifact, which holds its programs already",
            fix="copy the artifact's folder, or compile the model anew and save that",
        )
    for program in programs:
        if program.derivative is not None:
            program.derivative.complete()
    return programs


def program_facts(program: Program, stages: list[StageFacts]) -> ProgramFacts:
    """A program as plain data."""
    return ProgramFacts(
        stages=tuple(stages),
        guards=program.guards,
        constraints=program.constraints,
        sharp_edges=tuple(str(getattr(edge, "what", edge)) for edge in program.sharp_edges),
        devices=tuple(sorted(devices_of(program.last("computation")))),
        derivative=stored_autograd_signature(program),
        recorded=program.recorded,
        written=program.written_before_last(),
    )


def stored_autograd_signature(program: Program) -> StoredAutogradSignature | None:
    """The connection of a program to autograd."""
    if program.derivative is None:
        return None
    body = next(n for n, stage in enumerate(program.stages_of("computation")) if is_body(stage, program))
    return StoredAutogradSignature.of(program.derivative.signature, body)


def devices_of(trace: Trace) -> set[str]:
    """The devices on which a trace has tensors."""
    made = (proxy for bsym in trace.bound_symbols for proxy in bsym.tensors)
    return {str(proxy.device) for proxy in (*trace.inputs, *made) if isinstance(proxy, TensorProxy)}


def shell_files(model: Any) -> dict[str, bytes]:
    """The files that a model is built from without its weights."""
    files = {CONFIG: config_text(model.config), GENERATION: generation_text(model)}
    return {name: text.encode() for name, text in files.items() if text}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write each file below the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def name_of(subject: object) -> str:
    """The name of what was compiled, for people."""
    named = subject if hasattr(subject, "__qualname__") else type(subject)
    return str(getattr(named, "__qualname__", named))


def as_json(values: Mapping[str, object]) -> dict[str, JsonValue]:
    """Plain data as it is; anything else as text."""
    return {name: _as_json(value) for name, value in values.items()}


def _as_json(value: object) -> JsonValue:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return str(value)
