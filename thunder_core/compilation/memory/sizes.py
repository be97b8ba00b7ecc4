"""Traces in which the largest values replace the symbolic sizes, so that they use the most memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from thunder_core.tracing.ir.proxy import environment_of, with_sizes
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import replace_leaves


def at_upper_ends(trace: Trace) -> Trace:
    """Return the trace with the largest value in place of each symbol; without an upper bound, with the traced value.

    A trace without symbols is returned unchanged.
    """
    proxies = (proxy for bsym in trace.bound_symbols for proxy in (*bsym.inputs, *bsym.outputs))
    environment = environment_of((*trace.inputs, *proxies))
    if environment is None:
        return trace
    hints = environment.backed_var_to_val
    values = {symbol: _upper_end(environment.var_to_range.get(symbol), hint) for symbol, hint in hints.items()}
    return _Substitution(values).trace(trace)


def _upper_end(bounds: Any, hint: sympy.Integer) -> sympy.Integer:
    return bounds.upper if bounds is not None and bounds.upper.is_Integer else hint


@dataclass(frozen=True)
class _Substitution:
    """A substitution of symbols by values."""

    values: Mapping[sympy.Symbol, sympy.Integer]

    def trace(self, trace: Trace) -> Trace:
        """Return the trace with integers for its sizes."""
        bsyms = tuple(map(self.bound_symbol, trace.bound_symbols))
        return replace(trace, inputs=tuple(map(self.leaf, trace.inputs)), bound_symbols=bsyms)

    def bound_symbol(self, bsym: BoundSymbol) -> BoundSymbol:
        """Return a bound symbol and its subsymbols with integers for their sizes."""
        args, kwargs, output = replace_leaves((bsym.args, dict(bsym.kwargs), bsym.output), self.leaf)
        parts = tuple(map(self.bound_symbol, bsym.subsymbols))
        return replace(bsym, args=args, kwargs=kwargs, output=output, subsymbols=parts)

    def leaf(self, leaf: object) -> Any:
        """Return a proxy with integers for its sizes; other values are returned unchanged."""
        return with_sizes(leaf, self.size)

    def size(self, size: object) -> Any:
        """Return a size as an integer."""
        return int(size.node.expr.xreplace(self.values)) if isinstance(size, torch.SymInt) else size
