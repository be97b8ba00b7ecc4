"""The mode of a model: eval mode for inference, or train mode as the Trainer of transformers sets it."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from thunder_core.foundation.model_configs import config_or_none


def put_into_mode(model: torch.nn.Module, *, train: bool) -> None:
    """Put a model into eval mode or train mode. In train mode, a model of transformers uses no KV cache."""
    model.train(train)
    config = config_or_none(model)
    if train and isinstance(config, PretrainedConfig) and getattr(config, "use_cache", None):
        config.use_cache = False
