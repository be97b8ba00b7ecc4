"""The stages of sentence-transformers between token embeddings and a sentence embedding.

The formulas are from sentence-transformers 6.2 (`sentence_transformers/sentence_transformer/modules`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Features = dict[str, torch.Tensor]
TOKENS, SENTENCE, MASK = "token_embeddings", "sentence_embedding", "attention_mask"
MIN_DIVISOR = 1e-9  # the smallest divisor of a mean


class Pooling(nn.Module):
    """Pool token embeddings, [batch, tokens, width], into sentence embeddings, by one mode or several.

    If `include_prompt` is False, the first `prompt_length` tokens of each sample are left out.
    """

    def __init__(self, modes: tuple[str, ...], *, include_prompt: bool = True) -> None:
        """Create a stage that concatenates the results of these modes of `POOLINGS`."""
        super().__init__()
        self.modes = modes
        self.include_prompt = include_prompt

    def forward(self, features: Features, prompt_length: int | None = None) -> Features:
        """Return the features with a sentence embedding."""
        tokens, mask = features[TOKENS], features[MASK]
        if not self.include_prompt and prompt_length:
            mask = without_prompt(mask, prompt_length)
        pooled = [POOLINGS[mode](tokens, mask, features[MASK]) for mode in self.modes]
        return {**features, SENTENCE: torch.cat(pooled, dim=-1)}


class Normalize(nn.Module):
    """Scale embeddings to length 1."""

    def __init__(self, source: str = SENTENCE, target: str = SENTENCE) -> None:
        """Create a stage that reads the embeddings `source` and writes `target`."""
        super().__init__()
        self.source, self.target = source, target

    def forward(self, features: Features, prompt_length: int | None = None) -> Features:  # noqa: ARG002
        """Return the features with the normalized embeddings; embeddings that do not exist are left out."""
        if self.source not in features:
            return features
        return {**features, self.target: functional.normalize(features[self.source], p=2, dim=-1)}


class Dense(nn.Module):
    """Apply a linear layer and an activation to embeddings, optionally with a residual connection."""

    def __init__(
        self,
        sizes: tuple[int, int],
        activation: nn.Module,
        *,
        bias: bool = True,
        source: str = SENTENCE,
        target: str = SENTENCE,
        use_residual: bool = False,
    ) -> None:
        """Create a stage; `sizes` are the numbers of input and output features."""
        super().__init__()
        self.linear = nn.Linear(*sizes, bias=bias)
        self.activation = activation
        self.source, self.target, self.use_residual = source, target, use_residual
        if use_residual and sizes[0] != sizes[1]:
            self.residual = nn.Linear(*sizes, bias=False)

    def forward(self, features: Features, prompt_length: int | None = None) -> Features:  # noqa: ARG002
        """Return the features with the projected embeddings."""
        embedding = features[self.source]
        projected = self.activation(self.linear(embedding))
        if self.use_residual:
            projected = projected + (self.residual(embedding) if hasattr(self, "residual") else embedding)
        return {**features, self.target: projected}


class OnSentence(nn.Module):
    """Apply a layer to the sentence embeddings; the layer has the name that its weights have in the folder."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        """Create a stage from a layer."""
        super().__init__()
        self.name = name
        self.add_module(name, layer)

    def forward(self, features: Features, prompt_length: int | None = None) -> Features:  # noqa: ARG002
        """Return the features with the changed sentence embeddings."""
        layer: Any = getattr(self, self.name)
        return {**features, SENTENCE: layer(features[SENTENCE])}


def without_prompt(mask: torch.Tensor, prompt_length: int) -> torch.Tensor:
    """Return a mask of tokens without the padding on the left and the tokens of the prompt that follow it."""
    positions = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0)
    return mask.masked_fill(positions < (first_tokens(mask) + prompt_length).unsqueeze(1), 0)


def first_tokens(mask: torch.Tensor) -> torch.Tensor:
    """Return the position of the first token of each sample that is not padding."""
    return mask.to(torch.int32).argmax(dim=1)


# ---- modes of pooling: each takes the tokens, the mask, and the mask that includes the prompt --------------------


def pool_first(tokens: torch.Tensor, mask: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Return the first token of each sample."""
    return token_at(first_tokens(mask), tokens)


def pool_last(tokens: torch.Tensor, mask: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Return the last token of each sample; a sample without tokens gives zeros."""
    values, indices = mask.flip(1).max(1)
    indices = torch.where(values == 0, tokens.shape[1] - 1, indices)
    return token_at(tokens.shape[1] - indices - 1, tokens * mask.unsqueeze(-1).to(tokens.dtype))


def token_at(indices: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the token at one position of each sample."""
    return torch.gather(tokens, 1, indices.view(-1, 1, 1).expand(-1, 1, tokens.shape[-1])).squeeze(1)


def pool_max(tokens: torch.Tensor, mask: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Return the maximum over the tokens."""
    return tokens.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).max(dim=1).values


def pool_mean(tokens: torch.Tensor, mask: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens."""
    total, count = masked_sums(tokens, mask)
    return (total / count).to(tokens.dtype)


def pool_mean_sqrt(tokens: torch.Tensor, mask: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Return the sum over the tokens, divided by the square root of their number."""
    total, count = masked_sums(tokens, mask)
    return (total / torch.sqrt(count)).to(tokens.dtype)


def masked_sums(tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the tokens and their number, in the dtype of sums."""
    weights, dtype = mask.unsqueeze(-1).to(tokens.dtype), sum_dtype(tokens)
    return (tokens * weights).sum(dim=1, dtype=dtype), torch.clamp(weights.sum(dim=1, dtype=dtype), min=MIN_DIVISOR)


def pool_weighted_mean(tokens: torch.Tensor, mask: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens, weighted by their positions after the padding on the left."""
    dtype = sum_dtype(tokens)
    positions = torch.arange(1, tokens.shape[1] + 1, device=tokens.device, dtype=dtype).view(1, -1, 1)
    weights = mask.unsqueeze(-1).to(dtype) * (positions - first_tokens(whole).view(-1, 1, 1))
    return ((tokens * weights).sum(dim=1) / torch.clamp(weights.sum(dim=1), min=MIN_DIVISOR)).to(tokens.dtype)


def sum_dtype(tokens: torch.Tensor) -> torch.dtype:
    """Return the dtype of sums over tokens: float32 for dtypes of 16 bits."""
    return torch.float32 if tokens.dtype in (torch.float16, torch.bfloat16) else tokens.dtype


POOLINGS: Mapping[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": pool_first,
    "max": pool_max,
    "mean": pool_mean,
    "mean_sqrt_len_tokens": pool_mean_sqrt,
    "weightedmean": pool_weighted_mean,
    "lasttoken": pool_last,
}
