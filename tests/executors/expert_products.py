"""Products of experts and the checks that the tests of the packed experts kernel share."""

from __future__ import annotations

import torch
from torch import nn

import thunder_core as thunder
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.packed_experts import PackedExperts

KERNEL = PackedExperts(measures=False)
EXECUTORS = (KERNEL, "torch")


class Experts(nn.Module):
    """A product with the weights [experts, columns, depth], in the module of this file."""

    def __init__(self, experts: int = 4, depth: int = 16, columns: int = 24):
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.Parameter(torch.randn(experts, columns, depth))

    def forward(self, inputs):
        x, offsets = inputs
        return nn.functional.grouped_mm(x, self.weights.transpose(-2, -1), offs=offsets)


Experts.__module__ = "tests.executors.expert_products"


def claimed_in(compiled) -> list[BoundSymbol]:
    return [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "packed-experts"]


def multiply(x, weights, offsets):
    return nn.functional.grouped_mm(x, weights.transpose(-2, -1), offs=offsets)


def ends(*offsets: int) -> torch.Tensor:
    return torch.tensor(offsets, dtype=torch.int32)


def even_ends(rows: int, experts: int) -> torch.Tensor:
    """Return the ends of groups of rows that differ by at most one row."""
    return ends(*(rows * (expert + 1) // experts for expert in range(experts)))


SHAPES = [
    (1, 1, 4, 4), (1, 4, 8, 12), (2, 8, 512, 24), (7, 3, 20, 68), (16, 1, 36, 40), (40, 2, 512, 64), (100, 3, 600, 96),
    (130, 4, 1024, 72), (64, 64, 32, 128), (300, 5, 16, 32),
]  # fmt: skip
"""The number of rows, experts, depth and columns."""
