"""Recompute units: operations that update running statistics, visibly in their schema or not, are never recomputed."""

from __future__ import annotations

import pytest
import torch

from thunder_core.passes.autodiff.recomputation.recompute_units import Unit, Units
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.torch_facts.writes import UPDATES_STATISTICS
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol


def unit_of(operator: torch._ops.OpOverload) -> Unit:
    units = Units()
    units.add(BoundSymbol(symbol_of(operator), (Proxy("x"),), {}, Proxy("y")), 0, -1)
    (unit,) = units
    return unit


@pytest.mark.parametrize("name", UPDATES_STATISTICS)
def test_operation_with_hidden_updates_of_statistics_is_not_recomputed(name: str) -> None:
    assert unit_of(getattr(torch.ops.aten, name.removeprefix("aten::")).default).is_not_recomputable


def test_operation_without_updates_is_recomputed() -> None:
    assert not unit_of(torch.ops.aten.native_layer_norm.default).is_not_recomputable
