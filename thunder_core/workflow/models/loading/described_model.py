"""A model as its config describes it: all of its modules and tensors, on the meta device, so that none has data."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.loading.fingerprint import structure_fingerprint
from thunder_core.workflow.models.loading.load import LoadedModel, LoadingPlan, source_of
from thunder_core.workflow.models.request.dtype import parse_dtype
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.task import from_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def describe_model(plan: LoadingPlan, request: ModelRequest) -> LoadedModel:
    """The model of a plan without data; raises whatever its library raises for a config that it cannot build."""
    dtype = described_dtype(plan)
    config = copy.deepcopy(plan.config)  # to which the library writes the dtype
    with torch.device("meta"):
        model: PreTrainedModel = from_config(
            plan.task, config, dtype=dtype, trust_remote_code=request.trust_remote_code
        )
    torch.nn.Module.train(model, False)
    fingerprint = structure_fingerprint(model)
    return LoadedModel(model, model.config, plan.task, source_of(plan, request, dtype), fingerprint)


def described_dtype(plan: LoadingPlan) -> torch.dtype:
    """The dtype that was asked for, the config's own, or float32."""
    found = plan.dtype or plan.config.dtype or torch.float32
    return found if isinstance(found, torch.dtype) else parse_dtype(found)


def is_mapped(plan: LoadingPlan, request: ModelRequest) -> bool:
    """Whether the weights are read from files as they lie there, so that the system holds their memory."""
    is_stored = isinstance(plan.origin, FolderOrigin) and not request.random_weights
    return is_stored and plan.device.type == "cpu" and described_dtype(plan) == (plan.config.dtype or torch.float32)
