"""The eager model of an artifact, in the form that `load_model` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from thunder_core.foundation.errors import WrongInputs
from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.artifact.loading import rebuilt_model
from thunder_core.workflow.models.diffusion.config import config_of_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_model_of(artifact: Artifact, device: str | None = None, *, trust_remote_code: bool = False) -> LoadedModel:
    """Load the model that an artifact was made from, by default on the device of the artifact.

    Raises `WrongInputs` for an artifact of `thunder_core.save` that does not record the model's origin, and
    `RemoteCodeRefused` for a model with its own code, unless that code is trusted.
    """
    manifest = artifact.manifest
    if not manifest.source:
        raise WrongInputs(
            f"{artifact.folder} does not record the origin or the task of its {manifest.subject}",
            fix="make the artifact with `thunder optimize`, or compare it with the model in Python",
        )
    model = cast("PreTrainedModel", rebuilt_model(artifact, device, trust_remote_code=trust_remote_code))
    source: dict[str, object] = {**manifest.source, "device": str(model.device)}
    return LoadedModel(model, config_of_model(model), str(manifest.source["task"]), source, manifest.fingerprint)
