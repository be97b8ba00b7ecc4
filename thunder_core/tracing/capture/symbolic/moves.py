"""Proxies moved to another shape environment, in which decisions about sizes are recorded separately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import sympy
import torch

from thunder_core.tracing.capture.symbolic.shape_env import TraceShapeEnv
from thunder_core.tracing.ir.proxy import NumberProxy, with_sizes
from thunder_core.tracing.ir.sizes import hint_of, size_for_trace
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves


class Sizing(Protocol):
    """An environment that simplifies sizes and numbers, so that they can be compared."""

    def simplify_number(self, size: object) -> Any:
        """Return a size or a number in a form that can be compared."""


class HintEnvironment:
    """An environment in which each size has its value at tracing."""

    def simplify_number(self, size: object) -> Any:
        """Return the value of a size or a number at tracing."""
        return size.node.hint if isinstance(size, torch.SymInt | torch.SymFloat) else size


AT_HINTS = HintEnvironment()


def at_hints(tree: object) -> Any:
    """Return nested arguments with symbolic sizes and numbers replaced by their values at tracing."""
    return replace_leaves(tree, _at_hints)


def _at_hints(leaf: object) -> Any:
    mapped = with_sizes(leaf, AT_HINTS.simplify_number)
    return mapped.value if isinstance(mapped, NumberProxy) else mapped


@dataclass(frozen=True)
class Move:
    """A mapping of sizes to an environment, in which `symbols` of the other environment have other names."""

    environment: TraceShapeEnv
    symbols: Mapping[sympy.Symbol, sympy.Symbol] = field(default_factory=dict)

    def size(self, size: object) -> Any:
        """Return a size or a number with the same expression in the other environment."""
        if not isinstance(size, torch.SymInt | torch.SymFloat):
            return size
        expression = size.node.expr.xreplace(self.symbols)
        if isinstance(size, torch.SymFloat):
            return self.environment.create_symfloatnode(expression, hint=size.node.hint)
        return size_for_trace(self.environment.create_symintnode(expression, hint=hint_of(size)))

    def leaf(self, leaf: object) -> Any:
        """Return a proxy with its sizes in the other environment; other leaves are returned unchanged."""
        return with_sizes(leaf, self.size)

    def operation(self, operation: BoundSymbol) -> BoundSymbol:
        """Return an operation on proxies in the other environment."""
        args, kwargs, output = replace_leaves((operation.args, dict(operation.kwargs), operation.output), self.leaf)
        return replace(operation, args=args, kwargs=kwargs, output=output)
