"""The backward of attention on the CPU as matrix products, where that is faster than PyTorch's own kernel.

For 16-bit floats, PyTorch's kernel takes 3.5 ms for 8 heads of 128 x 64 on one thread and the products take 2.2 ms, and
the operations between the products are fused. For 512 positions and more, and in float32, PyTorch's kernel is faster
(docs/performance.md). The formulas are those of FlashAttention (Dao et al., 2022, algorithm 4), without its tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_POSITIONS = 256
SIXTEEN_BIT = (torch.bfloat16, torch.float16)
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Sequence[Tensor]:
    """Return the gradients of query `[B, H, T, D]`, key and value `[B, K, S, D]`, where K divides H.

    A product is rounded to 16 bits if the kernel rounds its result, too.
    """
    if query.dtype not in SIXTEEN_BIT or dropout_p or max(query.shape[-2], key.shape[-2]) > MAX_POSITIONS:
        gradients: Sequence[Tensor] = KERNEL(
            grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
        return gradients
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return _products(grad_out, query, key, value, out, logsumexp, attn_mask, factor, is_causal=is_causal)


def _products(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    attn_mask: Tensor | None,
    factor: float,
    *,
    is_causal: bool,
) -> Sequence[Tensor]:
    """Return the gradients, computed by matrix products. `factor` is the scale of the scores."""
    batch, heads, length, _ = query.shape
    groups = key.shape[1]
    rows = (batch, groups, heads // groups * length)

    def group(tensor: Tensor) -> Tensor:
        return tensor.reshape(*rows, tensor.shape[-1])

    def wide(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float32)

    scores = (wide(group(query)) @ wide(key).transpose(-1, -2)).view(batch, heads, length, -1) * factor
    scores = _mask_scores(scores, attn_mask, is_causal=is_causal)
    row_logsumexp = wide(logsumexp).reshape(batch, heads, length, 1)
    weights = torch.where(row_logsumexp.isneginf(), 0.0, torch.exp(scores - row_logsumexp))
    delta = (wide(grad_out) * wide(out)).sum(-1, keepdim=True)
    grad_scores = (wide(group(grad_out)) @ wide(value).transpose(-1, -2)).view(batch, heads, length, -1)
    grad_scores = group((weights * (grad_scores - delta) * factor).to(query.dtype))
    weights = group(weights.to(query.dtype))
    return (
        (grad_scores @ key).view(query.shape),
        grad_scores.transpose(-1, -2) @ group(query),
        weights.transpose(-1, -2) @ group(grad_out),
    )


def _mask_scores(scores: Tensor, attn_mask: Tensor | None, *, is_causal: bool) -> Tensor:
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores if attn_mask is None else scores + attn_mask
