"""Compiled functions and values that the tests of compiled functions within others share."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.tracing.ir.symbol import BoundSymbol

SINES = thunder.OperatorExecutor("sines")


sines = partial(thunder.jit, executors=[SINES, "torch"])
X = torch.tensor([1.0, 2.0])


def calls(compiled: Any) -> list[BoundSymbol]:
    """Return the lines of the latest program that call compiled functions."""
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    return [line for line in lines if line.symbol.name == "compiled.call"]


class Scaled:
    """An object with a compiled method."""

    factor = 2

    @sines
    def scaled(self, x: Tensor) -> Tensor:
        return torch.sin(x) * self.factor
