"""The loss with which sentence embeddings are usually trained.

The formula is from `MultipleNegativesRankingLoss` in sentence-transformers 6.2, with its default settings.
"""

from __future__ import annotations

import torch
from torch.nn import functional

SCALE = 20.0  # the factor of the similarities


def ranking_loss(sentences: torch.Tensor) -> torch.Tensor:
    """Return the loss of groups of texts, [batch, texts, width]: an anchor, a matching text, and other texts.

    The loss is low if each anchor is more similar to its matching text than to all other texts of the batch that are
    not anchors.
    """
    directions = functional.normalize(sentences, p=2, dim=-1)
    anchors, others = directions[:, 0], directions[:, 1:].transpose(0, 1).flatten(0, 1)
    own = torch.arange(anchors.shape[0], device=sentences.device)
    return functional.cross_entropy(anchors @ others.transpose(0, 1) * SCALE, own)
