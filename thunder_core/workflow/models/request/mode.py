"""The mode that a model is called in: for inference, or for training as transformers' Trainer puts it."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig


def put_into_mode(model: torch.nn.Module, *, train: bool) -> None:
    """Eval mode; or train mode, in which a model of transformers keeps no keys and values for later tokens."""
    model.train(train)
    config = getattr(model, "config", None)
    if train and isinstance(config, PretrainedConfig) and getattr(config, "use_cache", None):
        config.use_cache = False
