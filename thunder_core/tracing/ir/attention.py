"""Flex attention in a trace, for executors that have one kernel for all bound symbols that compute it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class ElementFunction:
    """A score or mask function, of one element: aten operations in names of their own.

    `inputs` are those of its parameters, and behind them of the `captured` tensors, which have the names of the trace.
    Two functions that do the same have the same `text`, which is also how they are shown.
    """

    text: str
    inputs: tuple[TensorProxy, ...] = field(compare=False)
    operations: tuple[BoundSymbol, ...] = field(compare=False)
    output: TensorProxy = field(compare=False)
    captured: tuple[TensorProxy, ...] = field(compare=False)

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class FlexAttention:
    """One call of flex attention: its tensors in the names of the trace, and its functions.

    `block_mask` is PyTorch's tuple without its function: lengths, numbers and indices of blocks, and their sizes.
    `identities` are those of the bound symbols that compute it, among others (`identity_of`).
    """

    query: TensorProxy
    key: TensorProxy
    value: TensorProxy
    score: ElementFunction
    mask: ElementFunction
    block_mask: tuple[TensorProxy | int | None, ...]
    scale: float
    options: Mapping[str, Any]
    identities: frozenset[str]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the operator, with its functions as they are here."""
        options = dict(sorted(self.options.items()))
        tensors = (self.query, self.key, self.value)
        captured = (self.score.captured, self.mask.captured)
        return (*tensors, self.score, (*self.block_mask, self.mask), self.scale, options, *captured)


def identity_of(bsym: BoundSymbol) -> str:
    """The operation of a bound symbol and the names that it makes or writes to, which tell it from all others."""
    return f"{bsym.symbol.name} {' '.join((*(proxy.name for proxy in bsym.outputs), *bsym.mutates))}"
