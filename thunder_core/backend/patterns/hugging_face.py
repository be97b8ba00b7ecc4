"""Patterns of the models of transformers: each is a function whose parameters are the arguments of a kernel.

The functions follow the models exactly where the result depends on it: which values are converted to float32, and when.
The sizes: `hidden` [..., width], `weight` [width], `query` and `key` [batch, heads, sequence, head], `cos` and `sin`
[batch or 1, sequence, head], `gate` and `up` [..., inner], `logits` [..., vocabulary].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from thunder_core.backend.patterns.pattern import pattern

# ---- normalization ------------------------------------------------------------------------------------------------


def _root_mean_square(hidden: Tensor, eps: float) -> Tensor:
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + eps)


def _llama(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * _root_mean_square(hidden.to(torch.float32), eps).to(hidden.dtype)


def _gemma(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (_root_mean_square(hidden.float(), eps) * (1.0 + weight.float())).type_as(hidden)


@pattern
def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of Llama, Mistral, Qwen, Phi 3 and most others: normalized in float32, scaled in the model's dtype."""
    return _llama(hidden, weight, eps)


@pattern
def rms_norm_of_gemma(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of Gemma: the scale is one plus the weight, and all operations but the last conversion are in float32."""
    return _gemma(hidden, weight, eps)


@pattern
def rms_norm_of_t5(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of T5: only the variance is explicitly in float32; PyTorch's type promotion decides the other dtypes."""
    variance = hidden.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return weight * (hidden * torch.rsqrt(variance + eps)).to(weight.dtype)


@pattern
def add_rms_norm(hidden: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `rms_norm` of the sum, and the sum, which is the next residual."""
    total = residual + hidden
    return _llama(total, weight, eps), total


@pattern
def add_rms_norm_of_gemma(hidden: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `rms_norm_of_gemma` of the sum, and the sum, which is the next residual."""
    total = residual + hidden
    return _gemma(total, weight, eps), total


# ---- positions ----------------------------------------------------------------------------------------------------


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return (x * cos) + (torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin)


@pattern
def rotary_embedding(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key rotated by their positions; `cos` and `sin` are repeated for both halves of a head."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return _rotate(query, cos, sin), _rotate(key, cos, sin)


# ---- gated activations --------------------------------------------------------------------------------------------


@pattern
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The gated activation of Llama, Mistral and Qwen."""
    return functional.silu(gate) * up


@pattern
def packed_swiglu(gate_and_up: Tensor) -> Tensor:
    """The gated activation of Phi 3, whose two projections are packed: [..., 2 * inner] to [..., inner]."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return up * functional.silu(gate)


@pattern
def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """The gated activation with the exact GELU."""
    return functional.gelu(gate) * up


@pattern
def geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    """The gated activation of Gemma, with GELU's approximation by tanh."""
    return functional.gelu(gate, approximate="tanh") * up


@pattern
def gelu_tanh(x: Tensor) -> Tensor:
    """GELU's approximation by tanh as GPT-2 writes it out (`gelu_new`)."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


# ---- losses -------------------------------------------------------------------------------------------------------


def _next_token_loss(logits: Tensor, labels: Tensor, vocabulary: int, ignored: int, reduction: str = "mean") -> Tensor:
    labels = functional.pad(labels, (0, 1), value=ignored)[..., 1:].contiguous().view(-1)
    rows = logits.float().view(-1, vocabulary)
    return functional.cross_entropy(rows, labels, ignore_index=ignored, reduction=reduction)


@pattern
def cross_entropy(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """The mean cross entropy of logits [rows, vocabulary] over the labels [rows] that are not `ignored`."""
    return functional.cross_entropy(logits, labels, ignore_index=ignored)


@pattern
def next_token_loss(logits: Tensor, labels: Tensor, vocabulary: int, ignored: int) -> Tensor:
    """The loss of causal language models: logits [batch, sequence, vocabulary] against labels shifted by one."""
    return _next_token_loss(logits, labels, vocabulary, ignored)


@pattern
def linear_next_token_loss(hidden: Tensor, weight: Tensor, labels: Tensor, vocabulary: int, ignored: int) -> Tensor:
    """`next_token_loss` of a linear head [vocabulary, width] without bias, if nothing else reads the logits."""
    return _next_token_loss(functional.linear(hidden, weight), labels, vocabulary, ignored)


@pattern
def summed_next_token_loss(logits: Tensor, labels: Tensor, vocabulary: int, ignored: int) -> Tensor:
    """`next_token_loss` before the division by `num_items_in_batch`, which a Trainer passes."""
    return _next_token_loss(logits, labels, vocabulary, ignored, "sum")


@pattern
def linear_summed_next_token_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, vocabulary: int, ignored: int
) -> Tensor:
    """`summed_next_token_loss` of a linear head [vocabulary, width] without bias, if nothing else reads the logits."""
    return _next_token_loss(functional.linear(hidden, weight), labels, vocabulary, ignored, "sum")
