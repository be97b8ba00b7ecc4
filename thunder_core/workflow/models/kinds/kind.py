"""The kind of a model: the functions that differ between the models of different libraries."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from transformers import PretrainedConfig

from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.inputs.random_inputs import Inputs, RandomInputs
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.loading.model_folder import ModelFolder
from thunder_core.workflow.models.loading.plan import LoadingPlan, StoredModel
from thunder_core.workflow.models.request.request import ModelRequest

Task: TypeAlias = "tuple[str, str | None]"  # a task, and a note if the task is only a fallback


@dataclass(frozen=True)
class ModelKind:
    """The functions for the models of one library.

    - `has_folder` recognizes the kind before the config is read, and `has_config` afterwards.
    - `find_task` takes the task that the user names, or None; it raises `BadOption` if the model lacks the task.
    - `build` takes a task, a config, a dtype and whether remote code is trusted; it builds a model with random weights.
    - `read` takes the patterns of weights that may be missing; it checks the weights and returns caveats about them.
    - `example_inputs` takes whether labels are needed, and the length of a cache.
    - `require_loss` takes a task, a config and the batch size; it raises `NoLoss` or `BadOption` if the model cannot be
    trained with them. `add_loss` changes the config of a model whose loss is not part of the model.
    - `describe_part` describes the part of a folder that is the model, if the folder contains more than the model.
    - `is_mapped`: whether weights are memory-mapped; otherwise, they are converted in memory.
    - `config_sets_outputs`: whether the configs have an attribute for the type of outputs.
    """

    library: str
    has_folder: Callable[[ModelFolder], bool]
    read_config: Callable[[ModelFolder], PretrainedConfig]
    has_config: Callable[[PretrainedConfig], bool]
    find_task: Callable[[str | None, PretrainedConfig], Task]
    build: Callable[[str, PretrainedConfig, torch.dtype, bool], Any]
    read: Callable[[LoadingPlan, FolderOrigin, ModelRequest, tuple[str, ...]], StoredModel]
    main_inputs: Callable[[PretrainedConfig, str, Collection[str]], tuple[str, ...]]
    example_inputs: Callable[[LoadedModel, RandomInputs, bool, int | None], Inputs]
    require_loss: Callable[[str, PretrainedConfig, int], None]
    add_loss: Callable[[PretrainedConfig], None] = lambda config: None
    describe_part: Callable[[FolderOrigin, PretrainedConfig], str | None] = lambda origin, config: None
    is_mapped: bool = True
    config_sets_outputs: bool = True
