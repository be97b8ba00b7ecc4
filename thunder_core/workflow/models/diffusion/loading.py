"""Build diffusers models, with random weights or with the weights of a folder."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import torch
from transformers import PretrainedConfig

from thunder_core.tracing.library.denoising.step import DenoisingStep
from thunder_core.workflow.models.diffusion.config import class_of
from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.loading.plan import LoadingPlan, StoredModel
from thunder_core.workflow.models.loading.weight_checks import AllowedWeights, check_weights
from thunder_core.workflow.models.request.request import ModelRequest


def random_diffusers_model(config: PretrainedConfig, dtype: torch.dtype) -> Any:
    """Build a model from its config, with random weights."""
    return with_loss(new_model(config, dtype), config)


def new_model(config: PretrainedConfig, dtype: torch.dtype) -> Any:
    """Build a model without a loss."""
    return class_of(config).from_config(dict(config.settings)).to(dtype)


def with_loss(model: Any, config: PretrainedConfig) -> Any:
    """Wrap a model in `DenoisingStep` if its config requests a loss; otherwise, return the model."""
    return DenoisingStep(model) if config.has_loss else model


def read_diffusers_model(
    plan: LoadingPlan, origin: FolderOrigin, request: ModelRequest, not_needed: tuple[str, ...]
) -> StoredModel:
    """Load the model of a folder; raise `BadModelFolder` if its weights do not fit its config."""
    with loading_errors(origin.folder, "cannot be loaded"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, report = class_of(plan.config).from_pretrained(
            origin.folder,
            torch_dtype=plan.dtype or torch.float32,
            use_safetensors=True,
            local_files_only=True,
            low_cpu_mem_usage=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    caveats = check_weights(origin.folder, model, report, AllowedWeights.of(request, not_needed=not_needed))
    initialize_weights(model, plan.config, report["missing_keys"])
    return StoredModel(with_loss(model, plan.config), caveats)


def initialize_weights(model: Any, config: PretrainedConfig, names: Collection[str]) -> None:
    """Initialize the named weights as in a new model, because diffusers may leave missing weights uninitialized."""
    if names:
        new = new_model(config, model.dtype).state_dict()
        model.load_state_dict({name: new[name] for name in names}, strict=False)
