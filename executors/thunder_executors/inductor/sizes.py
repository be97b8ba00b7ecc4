"""Regions whose symbols are in a separate `ShapeEnv`, whose guards are the conditions that the compiler decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, statically_known_true
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.capture.symbolic.moves import Move
from thunder_core.tracing.capture.symbolic.shape_env import NamedSource, TraceShapeEnv
from thunder_core.tracing.ir.proxy import NumberProxy, environment_of
from thunder_core.tracing.ir.sizes import hint_of, size_for_trace, text_of
from thunder_core.tracing.ir.tree import leaves


def in_own_environment(region: Region) -> Region:
    """Return the region with its symbols in a new environment without guards; a region without symbols is unchanged.

    The symbols are named by their indices: `s0`, `s1`, ... The symbol of a size remains positive.
    """
    if not region.symbols:
        return region
    environment = TraceShapeEnv(lambda: None)
    numbers = [_symbol(environment, index, proxy) for index, proxy in enumerate(region.symbols)]
    old_and_new = zip((proxy.value.node.expr for proxy in region.symbols), numbers, strict=True)
    move = Move(environment, {old: new.value.node.expr for old, new in old_and_new if old.is_Symbol})
    inputs, outputs = (tuple(map(move.leaf, proxies)) for proxies in (region.inputs, region.outputs))
    return Region(inputs, tuple(map(move.operation, region.operations)), outputs, region.numbers, tuple(numbers))


def _symbol(environment: TraceShapeEnv, index: int, proxy: NumberProxy) -> NumberProxy:
    """Return the symbol of the new environment for an old symbol."""
    source, hint = NamedSource(f"s{index}"), hint_of(proxy.value)
    is_size = proxy.value.node.expr.is_positive
    create = environment.create_symbol if is_size else environment.create_unspecified_symbol
    symbol = create(hint, source, DimDynamic.DYNAMIC)
    size: Any = environment.create_symintnode(symbol, hint=hint, source=source)
    return NumberProxy(str(symbol), size_for_trace(size))


def numbers_in(region: Region, symbols: Sequence[Any]) -> dict[str, Any]:
    """Return the numbers that operations of the region take, by name, computed from its symbols' values."""
    values = dict(zip((proxy.value.node.expr for proxy in region.symbols), symbols, strict=True))
    arguments = leaves([(operation.args, dict(operation.kwargs)) for operation in region.operations])
    numbers = {leaf.name: leaf.value for leaf in arguments if isinstance(leaf, NumberProxy)}
    return {name: compute_size(value, values) for name, value in numbers.items()}


def compute_size(size: Any, values: dict[sympy.Basic, Any]) -> Any:
    """Return the value of a size, computed from the values of symbols."""
    return sympy_interp(PythonReferenceAnalysis, values, size.node.expr) if isinstance(size, torch.SymInt) else size


def conditions_of(region: Region) -> tuple[str, ...]:
    """Return the guards on the region's symbols in its own environment, as Python expressions."""
    environment = environment_of(region.symbols)
    guards: Any = () if environment is None else environment.guards
    return tuple(dict.fromkeys(text_of(guard.expr) for guard in guards))


def is_certain(condition: Any) -> bool:
    """Whether a condition holds for all sizes; the check adds no guard."""
    return bool(statically_known_true(condition))


def text_of_sizes(sizes: Sequence[Any]) -> str:
    """Return sizes as a Python tuple."""
    texts = [text_of(size.node.expr) if isinstance(size, torch.SymInt) else str(size) for size in sizes]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
