"""Build models of diffusers, with random weights or with the weights of a folder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from thunder_core.foundation.errors import BadModelFolder
from thunder_core.tracing.library.denoising.step import DenoisingStep
from thunder_core.workflow.models.diffusion.config import class_of
from thunder_core.workflow.models.loading.load_errors import loading_errors


def random_diffusers_model(config: PretrainedConfig, dtype: torch.dtype) -> Any:
    """Build a model from its config, with random weights."""
    return with_loss(class_of(config).from_config(dict(config.settings)).to(dtype), config)


def with_loss(model: Any, config: PretrainedConfig) -> Any:
    """Return a model with its loss if its config asks for it; otherwise the model."""
    return DenoisingStep(model) if config.has_loss else model


def read_diffusers_weights(config: PretrainedConfig, dtype: torch.dtype | None, folder: Path) -> Any:
    """Load the model of a folder; raise `BadModelFolder` if its weights do not fit its config."""
    with loading_errors(folder, "cannot be loaded"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, report = class_of(config).from_pretrained(
            folder,
            torch_dtype=dtype or torch.float32,
            use_safetensors=True,
            local_files_only=True,
            low_cpu_mem_usage=False,
            output_loading_info=True,
        )
    for verdict, key in (("lacks", "missing_keys"), ("has, unlike the config,", "unexpected_keys")):
        if names := sorted(report[key]):
            raise BadModelFolder(
                f"{folder} {verdict} {len(names)} weights of {type(model).__name__}, such as {names[0]}",
                fix="use the config.json that was saved with these weights",
            )
    return with_loss(model, config)
