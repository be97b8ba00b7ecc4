"""Diffusers models, such as the denoiser of a pipeline."""

from __future__ import annotations

from transformers import PretrainedConfig

from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.models.diffusion.config import DIFFUSERS as LIBRARY
from thunder_core.workflow.models.diffusion.config import diffusers_config, is_diffusers
from thunder_core.workflow.models.diffusion.folder import is_diffusers_config
from thunder_core.workflow.models.diffusion.inputs import SAMPLE, diffusers_inputs, require_denoiser, target_of
from thunder_core.workflow.models.diffusion.loading import random_diffusers_model, read_diffusers_model
from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.inputs.random_inputs import Inputs, RandomInputs
from thunder_core.workflow.models.kinds.kind import ModelKind
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.loading.model_folder import ModelFolder
from thunder_core.workflow.models.request.names import DIFFUSERS_TASK, usual_spelling


def is_diffusers_folder(folder: ModelFolder) -> bool:
    """Whether the config in a folder describes a diffusers model."""
    return is_diffusers_config(folder.content)


def read_diffusers_config(folder: ModelFolder) -> PretrainedConfig:
    """Return the config in a folder.

    Raise `PackageMissing` if diffusers is not installed, and `UnknownArchitecture` if it has no such model class.
    """
    return diffusers_config(folder.folder, folder.content)


def find_task(name: str | None, config: PretrainedConfig) -> tuple[str, str | None]:
    """Return the task; raise `BadOption` if the user names a task, because the class decides what the model does."""
    if name is not None and usual_spelling(name) != DIFFUSERS_TASK:
        raise BadOption(
            f"{(config.architectures or [''])[0]} is a diffusers model, which does not have the task {name!r:.80}",
            fix="leave out --task",
        )
    return DIFFUSERS_TASK, None


def describe_part(origin: FolderOrigin, config: PretrainedConfig) -> str | None:
    """Return a note if the model is a component of a pipeline."""
    if origin.folder == origin.named:
        return None
    return f"{origin.folder.name} of the pipeline in {origin.named}; other components have folders of their own"


def example_inputs(loaded: LoadedModel, draw: RandomInputs, labels: bool, cache: int | None) -> Inputs:
    """Return random inputs, with a target if `labels` is set; diffusers models have no KV cache."""
    inputs = diffusers_inputs(draw)
    return {**inputs, **(target_of(loaded.config, draw, inputs) if labels else {})}


def add_loss(config: PretrainedConfig) -> None:
    """Set the config so that the model is loaded as a denoiser with its loss."""
    config.has_loss = True


DIFFUSERS = ModelKind(
    library=LIBRARY,
    has_folder=is_diffusers_folder,
    read_config=read_diffusers_config,
    has_config=is_diffusers,
    find_task=find_task,
    build=lambda task, config, dtype, trust_remote_code: random_diffusers_model(config, dtype),
    read=read_diffusers_model,
    main_inputs=lambda config, main, accepted: (SAMPLE,),
    example_inputs=example_inputs,
    require_loss=lambda task, config, batch: require_denoiser(config),
    add_loss=add_loss,
    describe_part=describe_part,
    is_mapped=False,
    config_sets_outputs=False,
)
