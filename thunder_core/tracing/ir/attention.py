"""Flex attention in a trace, for executors that replace all bound symbols of a call by one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class ElementFunction:
    """A score or mask function of one element: aten operations with names of their own.

    `inputs` are its parameters, followed by parameters for the `captured` tensors, which have names of the trace. Two
    equivalent functions have the same `text`, which is also their printed form.
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
    """A call of flex attention: its tensors, by their names in the trace, and its functions.

    `block_mask` is PyTorch's tuple without its function: the lengths, the numbers and indices of blocks, and the block
    sizes. `identities` identify the bound symbols that compute the call, possibly with others (`identity_of`).
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
        """The arguments of the operator, with the functions of this class."""
        options = dict(sorted(self.options.items()))
        tensors = (self.query, self.key, self.value)
        captured = (self.score.captured, self.mask.captured)
        return (*tensors, self.score, (*self.block_mask, self.mask), self.scale, options, *captured)


def identity_of(bsym: BoundSymbol) -> str:
    """Return the operation of a bound symbol and the names that it makes or writes to, which are unique in a trace."""
    return f"{bsym.symbol.name} {' '.join((*(proxy.name for proxy in bsym.outputs), *bsym.mutates))}"
