"""Queries, keys, values and the checks that the tests of the packed attention kernel share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import thunder_core as thunder
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.packed_attention import PackedAttention
from thunder_executors.packed_linear import PackedLinear

KERNEL, LINEAR = PackedAttention(measures=False), PackedLinear(measures=False)
EXECUTORS = (KERNEL, "torch")


class Heads(nn.Module):
    """Attention of an input to itself, in the module of this file."""

    def __init__(self, heads: int = 4, is_causal: bool = False):
        super().__init__()
        self.heads, self.is_causal = heads, is_causal

    def forward(self, x):
        batch, rows, width = x.shape
        heads = x.view(batch, rows, self.heads, width // self.heads).transpose(1, 2)
        result = scaled_dot_product_attention(heads, heads, heads, is_causal=self.is_causal)
        return result.transpose(1, 2).reshape(batch, rows, width)


Heads.__module__ = "tests.executors.packed_heads"


def claimed_in(compiled) -> list[BoundSymbol]:
    return [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "packed-attention"]


def heads(batch: int, count: int, rows: int, width: int) -> torch.Tensor:
    """Return a view [batch, heads, rows, width] of [batch, rows, heads * width]."""
    return torch.randn(batch, rows, count * width).view(batch, rows, count, width).transpose(1, 2)


def in_double(query, key, value, mask=None, **options):
    wide = mask.double() if mask is not None and mask.dtype.is_floating_point else mask
    return scaled_dot_product_attention(query.double(), key.double(), value.double(), wide, **options)


def attend(query, key, value, mask=None, **options):
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)


SHAPES = [
    (1, 1, 1, 1, 1, 1), (1, 2, 5, 7, 8, 8), (2, 3, 33, 40, 16, 16), (3, 2, 16, 16, 24, 24), (2, 2, 64, 64, 32, 32),
    (1, 3, 197, 197, 64, 64), (1, 2, 40, 300, 80, 72), (1, 1, 300, 700, 64, 64), (2, 1, 31, 600, 7, 5),
    (1, 2, 48, 17, 128, 33), (1, 1, 20, 30, 600, 300),
]  # fmt: skip
