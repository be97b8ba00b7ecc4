"""The family that a model belongs to."""

from __future__ import annotations

from transformers import PretrainedConfig


def model_family(config: PretrainedConfig) -> str:
    """The family's name in the transformers library: `llama`, `bert`, `t5`."""
    return str(config.model_type)
