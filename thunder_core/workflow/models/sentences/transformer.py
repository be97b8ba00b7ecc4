"""Build a sentence model, and the transformer in it, from a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PretrainedConfig

from thunder_core.foundation.errors import BadOption, NoLoss
from thunder_core.tracing.library.sentences.model import KEY, SentenceModel

# The encoders that are used without their decoders.
ENCODERS = {
    "t5": "T5EncoderModel",
    "mt5": "MT5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "longt5": "LongT5EncoderModel",
}


def random_model(config: PretrainedConfig, dtype: torch.dtype) -> SentenceModel:
    """Build a sentence model from a config, with random weights."""
    return SentenceModel(transformer_class(config)._from_config(config, dtype=dtype)).to(dtype)


def empty_model(config: PretrainedConfig) -> SentenceModel:
    """Build a sentence model by the constructors of its classes, in the default dtype."""
    return SentenceModel(transformer_class(config)(config))


def is_sentence_config(config: PretrainedConfig) -> bool:
    """Whether a config lists stages of sentence-transformers."""
    return getattr(config, KEY, None) is not None


def require_pairs(task: str, config: PretrainedConfig, batch: int) -> None:
    """Raise `NoLoss` for a model without a pooling.

    Raises `BadOption` for training with a single pair of texts, because the loss compares several pairs.
    """
    require_pooling(config)
    if batch < 2:
        raise BadOption(
            f"--batch is {batch}, but sentence embeddings are trained with several pairs of texts in a batch",
            fix="use --batch 2 or more",
        )


def require_pooling(config: PretrainedConfig) -> None:
    """Raise `NoLoss` for stages that make no embedding of a sentence."""
    if not any(stage["kind"] == "Pooling" for stage in getattr(config, KEY)):
        raise NoLoss(
            "this model has no pooling, so it returns no sentence embeddings to train",
            fix="add a Pooling to modules.json, or compile your own training step: thunder_core.jit(function)",
        )


def transformer_class(config: PretrainedConfig) -> Any:
    """Return the class of the transformer that gives token embeddings; raise ValueError if there is none."""
    if config.model_type in ENCODERS:
        return getattr(transformers, ENCODERS[config.model_type])
    kind: Any = MODEL_MAPPING.get(type(config), None)
    if isinstance(kind, list | tuple):
        kind = kind[0]
    if kind is None:
        raise ValueError(f"the family {config.model_type!r} has no base model in the transformers library")
    return kind


def config_class_of(content: Mapping[str, Any]) -> Any:
    """Return the class of a config from its content."""
    return CONFIG_MAPPING[str(content["model_type"])]
