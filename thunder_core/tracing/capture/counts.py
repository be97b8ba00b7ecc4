"""Counts of nonzero elements and values of tensors that are symbolic sizes, because the prologue computes them.

The prologue computes such a value if all operations for it are cheap, have no effects and cannot fail: pointwise
operations, views, and sums of inputs. Any other value is a constant of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.tracing.capture.call import RecordedCall
from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.fakes.trial import apart
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.capture.torch_facts.indexing import MASKS
from thunder_core.tracing.capture.values import TracedValues, Unknowable
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.sizes import comparison_keys
from thunder_core.tracing.ir.symbol import BoundSymbol

aten = torch.ops.aten
MOST_OPERATIONS = 16  # in the prologue for one count
REDUCTIONS = frozenset(
    {
        *(aten.sum.default, aten.sum.dim_IntList, aten.any.default, aten.any.dim, aten.all.default, aten.all.dim),
        *(aten.mean.default, aten.mean.dim, aten.amax.default, aten.amin.default, aten.cumsum.default),
        *(aten.max.default, aten.min.default),
    }
)
OTHERS = frozenset({aten._to_copy.default, aten.clone.default, aten.arange.default, aten.arange.start_step})
OF_NONZERO = frozenset({torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere})
OF_MASK = frozenset({torch.masked_select, torch.Tensor.masked_select})
LEAST = 2  # the smallest symbolic value, because 0 and 1 affect more of the metadata


@dataclass(frozen=True)
class Quantity:
    """An integer that depends on a tensor: its description, its expression with a placeholder, and its function."""

    words: str
    text: str
    of: Callable[[torch.Tensor], Any]


COUNT = Quantity("count of elements that are not zero", "int(torch.count_nonzero({}))", torch.count_nonzero)
VALUE = Quantity("value of a tensor", "{}.item()", torch.Tensor.item)
SourceOf = Callable[[Quantity, Sequence[BoundSymbol], Proxy, int], Any]


@dataclass
class Counts:
    """The counts and values of a recording that are sizes; `allowed` says whether tensor values may be read.

    `source_of(quantity, bsyms, proxy, value)` returns the source of a value, or None for a constant of the program. The
    `bsyms` compute the tensor from inputs.
    """

    sizes: SymbolicSizes | None
    tensors: Tensors
    evaluation: TracedValues
    allowed: bool
    source_of: SourceOf = lambda quantity, bsyms, proxy, value: None
    symbols: dict[tuple[str, int], torch.SymInt] = field(default_factory=dict)

    @contextmanager
    def around(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], call: RecordedCall
    ) -> Iterator[None]:
        """Give the size of a result that is a count of nonzero elements a symbol during the block, if possible."""
        counted = counted_tensor(function, args, kwargs) if self.allowed else None
        size = None if counted is None else self._symbol(counted)
        if counted is None or size is None or self.sizes is None:
            yield
            return
        call.counted = True
        counted.nonzero_memo = size  # type: ignore[attr-defined]
        try:
            with self.sizes.environment.counting(size):
                yield
        except Exception:
            call.counted = False
            raise

    def _symbol(self, counted: torch.Tensor) -> torch.SymInt | None:
        """Return the symbol of the count of a tensor's nonzero elements, or None if it is a constant."""
        if not self.tensors.is_named(counted) or counted.is_inference():
            return None
        proxy = self.tensors.proxy(counted)
        key = proxy.name, counted._version
        if key not in self.symbols:
            source, count = self._source_and_value(COUNT, proxy) or (None, 0)
            if source is None or not count or self.sizes is None:
                return None
            self.symbols[key] = self.sizes.symbol(source, count, least=1)
        return self.symbols[key]

    def value(self, maker: BoundSymbol) -> torch.SymInt | None:
        """Return the symbol of the integer that a bound symbol reads from a tensor, or None if it is a constant."""
        if not self.allowed or maker.symbol.target is not torch.Tensor.item:
            return None
        key = maker.output.name, 0
        if key not in self.symbols:
            source, value = self._source_and_value(VALUE, maker.args[0]) or (None, 0)
            if source is None or self.sizes is None or value < LEAST:
                return None
            self.symbols[key] = self.sizes.symbol(source, value)
        return self.symbols[key]

    def _source_and_value(self, quantity: Quantity, proxy: Proxy) -> tuple[Any, int] | None:
        """Return the source of a quantity of a tensor and its value in this call; None if no prologue computes it."""
        bsyms = self.evaluation.bsyms_for(proxy)
        if bsyms is None or len(bsyms) > MOST_OPERATIONS or not all(map(is_cheap, bsyms)):
            return None
        if self.evaluation.first_effect() is not None:
            return None
        try:
            tensor = self.evaluation.value(proxy)
        except Unknowable:
            return None
        with apart():
            value = int(quantity.of(tensor))
        return self.source_of(quantity, bsyms, proxy, value), value


def counted_tensor(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the tensor whose nonzero elements a call counts, or None if it is not a single one."""
    if function is torch.Tensor.__getitem__:
        indices = tensors_in(args[1])
        return indices[0] if len(indices) == 1 and indices[0].dtype in MASKS and indices[0].dim() else None
    if function in OF_NONZERO or (function is torch.where and len([*args, *kwargs]) == 1):
        return next(iter(tensors_in((tuple(args), dict(kwargs)))), None)
    if function in OF_MASK:
        tensors = tensors_in((tuple(args), dict(kwargs)))
        return tensors[1] if len(tensors) == 2 and have_one_shape(*tensors) else None
    return None


def have_one_shape(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape for all sizes."""
    return comparison_keys(one.shape) == comparison_keys(other.shape)


def is_cheap(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol has no effect, cannot fail for values, and takes time in proportion to memory."""
    operations = [part.symbol.target for part in bsym.subsymbols] or [bsym.symbol.target]
    return not (bsym.ordered or bsym.mutates) and all(map(is_cheap_operation, operations))


def is_cheap_operation(operation: Any) -> bool:
    """Whether an operation is pointwise, a view, or a sum."""
    if not isinstance(operation, torch._ops.OpOverload) or operation._schema.is_mutable:
        return False
    is_view = any(result.alias_info is not None for result in operation._schema.returns)
    return is_view or torch.Tag.pointwise in operation.tags or operation in REDUCTIONS or operation in OTHERS
