"""Models of the transformers library, and models of timm, which the transformers library wraps."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import PretrainedConfig

from thunder_core.foundation.errors import NoLoss
from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.inputs.labels import require_labels
from thunder_core.workflow.models.inputs.modality import main_inputs
from thunder_core.workflow.models.inputs.transformers_inputs import transformers_inputs
from thunder_core.workflow.models.kinds.kind import ModelKind
from thunder_core.workflow.models.loading.config import read_transformers_config
from thunder_core.workflow.models.loading.model_folder import ModelFolder
from thunder_core.workflow.models.loading.read_weights import read_weights
from thunder_core.workflow.models.loading.timm_models import TIMM as TIMM_LIBRARY
from thunder_core.workflow.models.loading.timm_models import WRAPPER, is_timm_config, timm_config
from thunder_core.workflow.models.request.names import BASE_TASK, SENTENCE_TASK
from thunder_core.workflow.models.request.task import from_config, require_task, task_with_name
from thunder_core.workflow.models.sentences.folder import MODULES, has_stages


def find_task(name: str | None, config: PretrainedConfig) -> tuple[str, str | None]:
    """Return the named task, or without a name the task of the architecture, with a note if the task is a fallback.

    Raises `UnknownName` for an unknown task, `BadOption` for a task that the family does not have, and
    `CannotGenerate` for `generate` if the model cannot generate.
    """
    task, note = task_with_name(name, config)
    require_task(task, config)
    return task, note


def build(task: str, config: PretrainedConfig, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """Build a model for a task from a config, with random weights."""
    return from_config(task, config, dtype=dtype, trust_remote_code=trust_remote_code)


def describe_part(origin: FolderOrigin, config: PretrainedConfig) -> str | None:
    """Return a note if the folder's sentence-transformers modules (stages) are left out."""
    if not has_stages(origin.named):
        return None
    return f"the stages of {MODULES} (such as the pooling) are left out: {SENTENCE_TASK} is the task that has them"


def is_timm_folder(folder: ModelFolder) -> bool:
    """Whether the config in a folder describes a timm model."""
    return is_timm_config(folder.content)


def read_timm_config(folder: ModelFolder) -> PretrainedConfig:
    """Convert the timm config in a folder to the config of transformers."""
    return timm_config(folder.folder, folder.content)


def require_classes(task: str, config: PretrainedConfig, batch: int) -> None:
    """Raise `NoLoss` for a model of timm without classes."""
    if task == BASE_TASK:
        raise NoLoss(
            "this model of timm has no classes, so there is no loss to train with",
            fix="create the model with classes: `timm.create_model(NAME, num_classes=N)`; or compile your own training "
            "step: thunder_core.jit(function)",
        )
    require_labels(task)


TRANSFORMERS = ModelKind(
    library="transformers",
    has_folder=lambda folder: True,
    read_config=read_transformers_config,
    has_config=lambda config: True,
    find_task=find_task,
    build=build,
    read=read_weights,
    main_inputs=main_inputs,
    example_inputs=transformers_inputs,
    require_loss=lambda task, config, batch: require_labels(task),
    describe_part=describe_part,
)
TIMM = dataclasses.replace(
    TRANSFORMERS,
    library=TIMM_LIBRARY,
    has_folder=is_timm_folder,
    read_config=read_timm_config,
    has_config=lambda config: config.model_type == WRAPPER,
    require_loss=require_classes,
)
