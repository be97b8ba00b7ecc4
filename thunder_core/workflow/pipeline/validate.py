"""Validate an artifact: compare its stored programs, without tracing, with eager PyTorch on new inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thunder_core.foundation.errors import BadOption, OutputNotWritable, WrongInputs
from thunder_core.workflow.artifact.format.compatibility import require_compatible
from thunder_core.workflow.artifact.format.manifest import GenerationFacts, ValidationState
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.artifact.format.report import read_report
from thunder_core.workflow.artifact.format.signature import require_authentic
from thunder_core.workflow.artifact.revise import can_be_revised, require_same, revise
from thunder_core.workflow.artifact.trust.consent import NO_CONSENT, Consent
from thunder_core.workflow.benchmark.machine import machine_name
from thunder_core.workflow.models.inputs.batches import longer_than
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.failures import stage_failures
from thunder_core.workflow.pipeline.generation.generation_findings import generation_report
from thunder_core.workflow.pipeline.request.purpose import purpose_of
from thunder_core.workflow.pipeline.request.samples import artifacts_samples
from thunder_core.workflow.pipeline.request.validate_request import ValidateRequest, check_validate_request
from thunder_core.workflow.pipeline.session.clock import StageClock
from thunder_core.workflow.pipeline.session.dynamic import points_of
from thunder_core.workflow.pipeline.session.progress import EVALUATE, Progress, SilentProgress
from thunder_core.workflow.pipeline.session.session import Session, open_saved, traced_size
from thunder_core.workflow.validation import ValidationReport
from thunder_core.workflow.validation.report import Evaluation, GenerationReport

DEFAULTS = ValidateRequest()


@dataclass(frozen=True)
class Revalidation:
    """The result of a validation, and whether the artifact was changed.

    Only an artifact that was not validated yet is changed; its signatures are then dropped. `caveats` are the report's
    remarks on the model's weights.
    """

    artifact: Path
    state: ValidationState
    written: bool
    validation: ValidationReport | GenerationReport
    signature_dropped: bool = False
    evaluation: Evaluation | None = None
    caveats: tuple[str, ...] = ()


def validate_artifact(
    folder: Path,
    request: ValidateRequest = DEFAULTS,
    *,
    consent: Consent = NO_CONSENT,
    progress: Progress | None = None,
) -> Revalidation:
    """Compare an artifact with the eager model that it was made from, as `optimize` does before writing an artifact.

    The inputs are new: the traced input is not used again. If `request.write` is set, an artifact that was not
    validated yet is marked as validated; a validated artifact is not changed. A signature is not valid for a changed
    manifest, so an artifact that is marked as validated loses its signatures. The tolerance is the artifact's, within
    the limits of its recipe, unless the request has other bounds. `consent` is the same as for `load`.

    Raises the errors of `load`, `OutOfTolerance`, `NotFinite` and `AllZero` with the report, and `WrongInputs` if the
    artifact does not record its inputs; nothing is changed in these cases.
    """
    check_validate_request(request)
    clock = StageClock(progress or SilentProgress())
    with stage_failures(lambda: clock.stage or "the start"):
        return _validate_artifact(folder, request, consent, clock)


def _validate_artifact(folder: Path, request: ValidateRequest, consent: Consent, clock: StageClock) -> Revalidation:
    clock.begin("load")
    artifact = open_artifact(folder)
    require_authentic(artifact, consent)
    report = read_report(artifact)
    state, signature_dropped = artifact.manifest.validation, False
    writes = request.write and state != "validated"
    generation = artifact.manifest.generation
    if generation is None:
        size, artifact_seed = size_and_seed_of(artifact, real_inputs=request.input is not None)
    else:
        require_generation_options(artifact, request)
    require_inference(artifact, request.evaluate)
    if writes:
        require_writable(artifact.folder)
    session, evaluation_data = _open_session(artifact, request, consent)
    validation: ValidationReport | GenerationReport
    if generation is None:
        seed = artifact_seed if request.seed is None else request.seed
        validation, evaluation = _findings(session, request, size, seed, evaluation_data, clock)
    else:
        validation, evaluation = _generation_findings(session, request, generation, clock), None
    if writes:
        clock.begin("write")
        signature_dropped = write_validation(artifact, validation, evaluation, machine_name(session.device))
    clock.stop()
    return Revalidation(
        artifact.folder,
        "validated" if writes else state,
        writes,
        validation,
        signature_dropped,
        evaluation,
        caveats=() if report is None else report.model.caveats,
    )


def _open_session(artifact: Artifact, request: ValidateRequest, consent: Consent) -> tuple[Session, Dataset | None]:
    """Return the session of an artifact and its eager model, and the samples for the metric, if there are any."""
    require_compatible(artifact.manifest)
    data, evaluation_data = (
        artifacts_samples(option, file, artifact, trust_remote_code=consent.trust_remote_code)
        for option, file in (("--input", request.input), ("--eval", request.evaluate))
    )
    purpose = purpose_of(artifact.manifest, data, cut=True)
    return open_saved(artifact, purpose, consent, strict=True, tolerance=request.tolerance), evaluation_data


def _findings(
    session: Session,
    request: ValidateRequest,
    size: InputSize,
    seed: int,
    evaluation_data: Dataset | None,
    clock: StageClock,
) -> tuple[ValidationReport, Evaluation | None]:
    """Return the comparison with eager PyTorch and, if there are samples, the metrics of eager and the artifact."""
    if evaluation_data is not None:
        session.require_judgeable_samples(evaluation_data, size, request.metric)
    accepts, advance = request.allow_non_finite, clock.advance
    with session.ready():
        clock.begin("validate")
        report = session.validation_report(
            size,
            request.inputs,
            further_sizes=points_of(session.ranges, size)[1:] if session.purpose.data is None else (),
            traced=0,
            seed=seed,
            allow_non_finite=accepts,
            advance=advance,
            seconds=request.validate_budget,
        )
        notes = (*report.notes, *cut_notes(session.purpose.data, size.seq))
        evaluation = None
        if evaluation_data is not None:
            clock.begin(EVALUATE)
            evaluation = session.evaluation(evaluation_data, size, request.metric, advance=advance)
    return report.model_copy(update={"notes": notes}), evaluation


def _generation_findings(
    session: Session, request: ValidateRequest, generation: GenerationFacts, clock: StageClock
) -> GenerationReport:
    """Return the comparison with eager generation; a requested seed is the seed of the prompts."""
    seed = generation.seed if request.seed is None else request.seed
    with session.ready(), quiet_transformers():
        clock.begin("validate")
        return generation_report(
            session,
            generation.lengths,
            seed,
            allow_non_finite=request.allow_non_finite,
            advance=clock.advance,
        )


def require_generation_options(artifact: Artifact, request: ValidateRequest) -> None:
    """Raise `BadOption` for an option of single calls, such as samples, with an artifact for generation."""
    call_options = {
        "--input": request.input,
        "--eval": request.evaluate,
        "--validate-budget": request.validate_budget,
        "--validate-inputs": None if request.inputs == DEFAULTS.inputs else request.inputs,
    }
    for option, value in call_options.items():
        if value is not None:
            raise BadOption(
                f"{option} is for single calls, but {artifact.folder} was made for generation",
                fix=f"leave out {option}",
            )


def size_and_seed_of(artifact: Artifact, *, real_inputs: bool) -> tuple[InputSize, int]:
    """Return the size of the inputs of an artifact's programs, and the seed of random inputs.

    If `real_inputs` is set, the artifact needs only an example. Raises `WrongInputs` for an artifact that does not
    record its random inputs, or has no example.
    """
    size, random_inputs = traced_size(artifact), artifact.manifest.random_inputs
    if size is None or not (random_inputs or real_inputs):
        raise WrongInputs(
            f"{artifact.folder} does not record which inputs its programs take",
            fix="pass real inputs with --input, make the artifact with `thunder optimize`, or compare it with the "
            "model in Python",
        )
    return size, random_inputs.get("seed", 0)


def require_inference(artifact: Artifact, evaluate: Path | None) -> None:
    """Raise `BadOption` for an evaluation of an artifact for training."""
    if evaluate is not None and artifact.manifest.train:
        raise BadOption(f"--eval needs inference, but {artifact.folder} is for training", fix="leave out --eval")


def require_writable(folder: Path) -> None:
    """Raise `OutputNotWritable`, before any heavy work, if the result could not be written."""
    if not can_be_revised(folder):
        raise OutputNotWritable(
            f"{folder} is not writable, so it cannot be marked as validated",
            fix="use --no-write, or copy the artifact to a writable folder",
        )


def cut_notes(data: Dataset | None, seq: int) -> Iterator[str]:
    """Yield a note if samples are longer than `seq` tokens, the length that the programs accept."""
    cut = 0 if data is None else longer_than(data, seq)
    if data is not None and cut:
        yield f"{cut} of the {len(data)} samples of {data.file.name} were truncated to the artifact's {seq} tokens"


def write_validation(
    artifact: Artifact, validation: ValidationReport | GenerationReport, evaluation: Evaluation | None, machine: str
) -> bool:
    """Mark an artifact as validated on a machine, with the results; return whether its signatures were dropped."""
    updated = validation.model_copy(update={"notes": (*validation.notes, f"validated after it was made, on {machine}")})
    require_same(artifact, artifact.folder)
    report = read_report(artifact)
    kind = "generation" if isinstance(updated, GenerationReport) else "validation"
    update: dict[str, object] = {kind: updated, "validation_state": "validated"}
    if evaluation is not None:
        update["evaluation"] = evaluation
    return revise(artifact, report.model_copy(update=update) if report else None, "validated").signature_dropped
