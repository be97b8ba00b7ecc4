"""Compare the types and shapes of tensors in a call with the types and shapes in the trace."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import Tensor

from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy


def wrong_metadata(program: Program, inputs: tuple[Any, ...]) -> str:
    """Describe the first tensor of a traced program whose metadata is wrong in a call; empty if there is none."""
    trace, last = program.traces("computation")[0], program.last("computation")
    values: dict[str, Any] = {proxy.name: value for proxy, value in zip(last.inputs, inputs, strict=True)}
    values.update(trace.constants)
    symbols = symbols_of(trace.inputs, values)
    with torch.no_grad():
        for bsym in trace.bound_symbols:
            try:
                evaluate([bsym], values)
            except Exception:  # eager PyTorch raises for this call too, or the tensors have other values
                return ""
            for proxy in bsym.outputs:
                if message := mistaken(proxy, values[proxy.name], symbols):
                    return f"`{bsym.symbol.name}` makes {message}"
    return ""


def symbols_of(proxies: tuple[Proxy, ...], values: dict[str, Any]) -> dict[sympy.Basic, sympy.Integer]:
    """Return the values of symbols in a call, as far as the inputs determine them."""
    found: dict[sympy.Basic, sympy.Integer] = {}
    for proxy in proxies:
        if isinstance(proxy, NumberProxy) and isinstance(proxy.value, torch.SymInt):
            found[proxy.value.node._expr] = sympy.Integer(int(values[proxy.name]))
        elif isinstance(proxy, TensorProxy):
            tensor = values[proxy.name]
            pairs = zip(proxy.shape, tensor.shape, strict=True)
            found.update(
                (size.node._expr, sympy.Integer(value)) for size, value in pairs if isinstance(size, torch.SymInt)
            )
    return found


def mistaken(proxy: Proxy, value: Any, symbols: dict[sympy.Basic, sympy.Integer]) -> str:
    """Describe how a tensor differs from its proxy in type or shape."""
    if not isinstance(proxy, TensorProxy) or not isinstance(value, Tensor) or value.layout is not torch.strided:
        return ""
    shape = tuple(number(item, symbols) for item in proxy.shape)
    pairs = zip(shape, value.shape, strict=False)
    if (proxy.dtype, len(shape)) == (value.dtype, value.dim()) and all(size in (None, real) for size, real in pairs):
        return ""
    return f"{value.dtype}{list(value.shape)} and not {proxy.dtype}{list(proxy.shape)}, which is {list(shape)}"


def number(size: Any, symbols: dict[sympy.Basic, sympy.Integer]) -> int | None:
    """Return the value of a size in a call, or None if it contains unknown symbols."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    found = size.node.expr.xreplace(symbols)
    return int(found) if found.is_number else None
