"""The family that a model belongs to."""

from __future__ import annotations

from transformers import PretrainedConfig


def model_family(config: PretrainedConfig) -> str:
    """Return the name of the family in the transformers library, such as `llama`, `bert` or `t5`."""
    return str(config.model_type)
