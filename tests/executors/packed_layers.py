"""The layer, the executors and the checks that the tests of the packed linear kernel share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear

import thunder_core as thunder
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.packed_linear import PackedLinear

KERNEL = PackedLinear(measures=False)
EXECUTORS = (KERNEL, "torch")


class Layer(nn.Module):
    """One linear layer, in the module of this file."""

    def __init__(self, depth: int = 48, columns: int = 33, bias: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(depth, columns, bias=bias)

    def forward(self, x):
        return self.linear(x)


Layer.__module__ = "tests.executors.packed_layers"


def claimed_in(compiled) -> list[BoundSymbol]:
    return [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "packed-linear"]


def in_double(x, weight, bias=None):
    return linear(x.double(), weight.double(), None if bias is None else bias.double())
