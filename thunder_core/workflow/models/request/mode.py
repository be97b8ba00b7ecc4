"""The mode that a model is called in: for inference, or for training as transformers' Trainer puts it."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from thunder_core.foundation.model_configs import config_or_none


def put_into_mode(model: torch.nn.Module, *, train: bool) -> None:
    """Eval mode; or train mode, in which a model of transformers keeps no keys and values for later tokens."""
    model.train(train)
    config = config_or_none(model)
    if train and isinstance(config, PretrainedConfig) and getattr(config, "use_cache", None):
        config.use_cache = False
