"""Derive the input tokens of a decoder from labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thunder_core.workflow.models.inputs.labels import IGNORED_LABEL
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def decoder_tokens(model: PreTrainedModel, labels: torch.Tensor, draw: RandomInputs) -> torch.Tensor:
    """Return the decoder's input tokens for labels, [batch, length]: the start token, then the labels shifted by one.

    Most model classes define this computation. For other classes, ignored labels become padding.
    """
    own = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if own is not None:
        tokens: torch.Tensor = own(labels=labels)
        return tokens
    start = torch.full_like(labels[:, :1], draw.start)
    shifted = torch.cat([start, labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORED_LABEL, draw.padding)
