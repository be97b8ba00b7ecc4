"""Validating an artifact: its stored programs, none of them traced anew, beside eager PyTorch on fresh inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from thunder_core.artifact.consent import NO_CONSENT, Consent
from thunder_core.artifact.here import require_here
from thunder_core.artifact.loading import load_opened
from thunder_core.artifact.manifest import ValidationState
from thunder_core.artifact.read import Artifact, open_artifact
from thunder_core.artifact.report import read_report
from thunder_core.artifact.revise import can_be_revised, revise
from thunder_core.artifact.signature import is_signed, require_authentic
from thunder_core.benchmark.machine import machine_name
from thunder_core.errors import BadOption, OutputNotWritable, WrongInputs
from thunder_core.models.load import LoadedModel
from thunder_core.models.task import LANGUAGE_TASKS
from thunder_core.pipeline.calamity import calamities
from thunder_core.pipeline.clock import Clock
from thunder_core.pipeline.foresight import require_seed
from thunder_core.pipeline.progress import Progress, Unwatched
from thunder_core.pipeline.purpose import Purpose
from thunder_core.pipeline.rebuild import loaded_from
from thunder_core.pipeline.recipes import find_recipe
from thunder_core.recipe import Tolerance
from thunder_core.validation import ValidationReport, validate


@dataclass(frozen=True)
class Revalidation:
    """What was measured, and whether the artifact was changed: it is where it had not been validated yet.

    Signatures of what it was before are dropped then.
    """

    artifact: Path
    state: ValidationState
    written: bool
    validation: ValidationReport
    signature_dropped: bool = False


def validate_artifact(
    folder: Path,
    *,
    inputs: int = 3,
    seed: int | None = None,
    write: bool = True,
    allow_non_finite: bool = False,
    consent: Consent = NO_CONSENT,
    progress: Progress | None = None,
) -> Revalidation:
    """Compare an artifact with the eager model that it was made from, as `optimize` does before it writes one.

    `seed` is that of the inputs (default: the one that it was made with; the traced input itself is left out). One that
    was not validated yet becomes so, if `write`; one that was stays as it is, byte for byte. `allow_non_finite` accepts
    NaN, infinities and nothing but zeros in what eager PyTorch gives. `consent` is what `load` takes as well. A
    signature is of what was signed: an artifact that becomes validated has none any more.

    Raises what `load` raises, `OutOfTolerance`, `NotFinite` and `AllZero` with the report, and `WrongInputs` where the
    artifact does not say which inputs it takes; nothing is changed then.
    """
    if inputs < 1:
        raise BadOption(f"--inputs is {inputs}", fix="give --inputs a number of 1 or more")
    require_seed(seed)
    clock = Clock(progress or Unwatched())
    with calamities(lambda: clock.stage or "the start"):
        clock.begin("load")
        artifact = open_artifact(folder)
        require_authentic(artifact, consent)
        signed = is_signed(artifact.folder)
        write = write and artifact.manifest.validation != "validated"
        require_drawn(artifact)
        if write:
            require_writable(artifact.folder)
        require_here(artifact.manifest)
        loaded = loaded_from(artifact, trust_remote_code=consent.trust_remote_code)
        compiled = load_opened(artifact, loaded.model, consent, strict=True)
        clock.begin("validate")
        validation = compared(artifact, loaded, compiled, inputs, seed, clock, allow_non_finite=allow_non_finite)
        if write:
            clock.begin("write")
            keep(artifact, validation, machine_name(loaded.model.device))
        clock.stop()
    state = "validated" if write else artifact.manifest.validation
    return Revalidation(artifact.folder, state, write, validation, signed and write)


def require_drawn(artifact: Artifact) -> None:
    """Raise `WrongInputs` for an artifact that does not say how its inputs were drawn."""
    if not artifact.manifest.drawn:
        raise WrongInputs(
            f"{artifact.folder} does not say which inputs its programs take",
            fix="make it with `thunder optimize`, or compare it with the model in Python",
        )


def require_writable(folder: Path) -> None:
    """Raise `OutputNotWritable` before anything heavy where the result could not be kept."""
    if not can_be_revised(folder):
        raise OutputNotWritable(
            f"{folder} was not validated yet, and that it is now cannot be written there",
            fix="give --no-write, or copy the artifact to a folder that can be written",
        )


def compared(
    artifact: Artifact,
    loaded: LoadedModel,
    compiled: torch.nn.Module,
    inputs: int,
    seed: int | None,
    clock: Clock,
    *,
    allow_non_finite: bool,
) -> ValidationReport:
    """The comparison on inputs that were not traced."""
    manifest = artifact.manifest
    batch, seq = manifest.drawn["batch"], manifest.drawn["seq"]
    first = manifest.drawn["seed"] if seed is None else seed
    purpose = Purpose(manifest.train)
    return validate(
        compiled,
        loaded.model,
        [purpose.inputs(loaded, batch=batch, seq=seq, seed=first + number) for number in range(1, inputs + 1)],
        tolerance_of(artifact, loaded.model.dtype),
        language_model=loaded.task in LANGUAGE_TASKS,
        train=manifest.train,
        allow_non_finite=allow_non_finite,
        progress=clock.advance,
        seed=first,
    )


def tolerance_of(artifact: Artifact, dtype: torch.dtype) -> Tolerance:
    """The tolerance that an artifact keeps; of one that keeps none, which an earlier version made, its recipe's."""
    manifest = artifact.manifest
    if manifest.tolerance is not None:
        return Tolerance(**manifest.tolerance.model_dump())
    return find_recipe(manifest.recipe or "default", manifest.options).loosest_tolerance(dtype)


def keep(artifact: Artifact, validation: ValidationReport, machine: str) -> None:
    """Write what was measured into the artifact, and where."""
    told = validation.model_copy(update={"notes": (*validation.notes, f"validated after it was made, on {machine}")})
    report = read_report(artifact)
    update = {"validation": told, "validation_state": "validated"}
    revise(artifact, report.model_copy(update=update) if report else None, "validated")
