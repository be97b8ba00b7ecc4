"""Build a model on the meta device from its config: its modules and tensors exist, but tensors have no data."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from thunder_core.workflow.models.diffusion.config import config_of_model
from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.kinds.table import kind_of
from thunder_core.workflow.models.loading.fingerprint import structure_fingerprint
from thunder_core.workflow.models.loading.load import source_of
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.loading.plan import LoadingPlan, described_dtype
from thunder_core.workflow.models.request.request import ModelRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def describe_model(plan: LoadingPlan, request: ModelRequest) -> LoadedModel:
    """Return the model of a plan on the meta device; raise the library's errors for a config that it cannot build."""
    dtype = described_dtype(plan)
    config = copy.deepcopy(plan.config)  # transformers writes the dtype into the config that it gets
    with torch.device("meta"):
        model: PreTrainedModel = kind_of(config).build(plan.task, config, dtype, request.trust_remote_code)
    torch.nn.Module.train(model, False)
    fingerprint = structure_fingerprint(model)
    return LoadedModel(model, config_of_model(model), plan.task, source_of(plan, request, dtype), fingerprint)


def is_mapped(plan: LoadingPlan, request: ModelRequest) -> bool:
    """Whether the weights are memory-mapped from files without conversion."""
    is_stored = isinstance(plan.origin, FolderOrigin) and not request.random_weights
    is_stored = is_stored and kind_of(plan.config).is_mapped
    return is_stored and plan.device.type == "cpu" and described_dtype(plan) == (plan.config.dtype or torch.float32)
