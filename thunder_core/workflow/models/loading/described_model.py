"""Build a model from its config on the meta device, with all modules and tensors but without data."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from thunder_core.workflow.models.diffusion.config import config_of_model, is_diffusers
from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.loading.fingerprint import structure_fingerprint
from thunder_core.workflow.models.loading.load import LoadedModel, LoadingPlan, source_of
from thunder_core.workflow.models.request.dtype import parse_dtype
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.task import from_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def describe_model(plan: LoadingPlan, request: ModelRequest) -> LoadedModel:
    """Return the model of a plan without data; raise the errors of transformers for a config that it cannot build."""
    dtype = described_dtype(plan)
    config = copy.deepcopy(plan.config)  # because transformers writes the dtype to the config
    with torch.device("meta"):
        model: PreTrainedModel = from_config(
            plan.task, config, dtype=dtype, trust_remote_code=request.trust_remote_code
        )
    torch.nn.Module.train(model, False)
    fingerprint = structure_fingerprint(model)
    return LoadedModel(model, config_of_model(model), plan.task, source_of(plan, request, dtype), fingerprint)


def described_dtype(plan: LoadingPlan) -> torch.dtype:
    """Return the requested dtype, otherwise the dtype of the config, otherwise float32."""
    dtype = plan.dtype or plan.config.dtype or torch.float32
    return dtype if isinstance(dtype, torch.dtype) else parse_dtype(dtype)


def is_mapped(plan: LoadingPlan, request: ModelRequest) -> bool:
    """Whether the weights are memory-mapped from files without conversion."""
    is_stored = isinstance(plan.origin, FolderOrigin) and not request.random_weights
    is_stored = is_stored and not is_diffusers(plan.config)
    return is_stored and plan.device.type == "cpu" and described_dtype(plan) == (plan.config.dtype or torch.float32)
