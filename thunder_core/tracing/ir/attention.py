"""Flex attention in a trace, for executors that replace all bound symbols of a call by one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class ElementFunction:
    """A score or mask function that is applied to each element: aten operations with their own names.

    `inputs` are the function's parameters, followed by parameters for the `captured` tensors. The captured tensors have
    names of the trace. Two equivalent functions have the same `text`, which is also their printed form.
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
    sizes. `identities` are the `identity_of` of each bound symbol that computes a part of the call.
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
        """The arguments of the operator, with the score and mask functions as `ElementFunction`s."""
        options = dict(sorted(self.options.items()))
        tensors = (self.query, self.key, self.value)
        captured = (self.score.captured, self.mask.captured)
        return (*tensors, self.score, (*self.block_mask, self.mask), self.scale, options, *captured)


def identity_of(bsym: BoundSymbol) -> str:
    """Return a string that is unique in a trace: a bound symbol's operation, and the names it defines or writes to."""
    return f"{bsym.symbol.name} {' '.join((*(proxy.name for proxy in bsym.outputs), *bsym.mutates))}"
