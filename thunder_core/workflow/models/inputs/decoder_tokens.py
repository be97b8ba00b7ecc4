"""The tokens that a decoder is given, where a file of samples holds what it should say alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from thunder_core.workflow.models.inputs.labels import IGNORED
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def decoder_tokens(model: PreTrainedModel, labels: torch.Tensor, draw: RandomInputs) -> torch.Tensor:
    """The tokens for labels (batch x length): one step on behind the start token, as the model's forward derives them.

    Most classes say by themselves how; in the others labels that are ignored are padding.
    """
    own = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if own is not None:
        made: torch.Tensor = own(labels=labels)
        return made
    start = torch.full_like(labels[:, :1], draw.start)
    shifted = torch.cat([start, labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORED, draw.padding)
