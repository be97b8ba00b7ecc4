"""A transform that increments several integer counters in one operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from thunder_core.passes.recipe import Transform
from thunder_core.tracing.analysis.aliasing import AliasSets, alias_sets
from thunder_core.tracing.analysis.data_errors import asserts_on_gpu, may_raise
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import NumberProxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class IncrementTogether(Transform):
    """Add a number to several integer tensors in place in one operation, instead of one for each tensor.

    For example, a static cache counts its tokens in each layer, and each addition runs as a kernel. An addition is
    delayed until a later addition if no bound symbol in between reads or writes its tensor, changes a state, or may
    raise an error that depends on values. An index error in a kernel on the same GPU does not count, because no program
    can read a tensor on that GPU after such an error.
    """

    after: ClassVar[tuple[str, ...]] = ("cse", "dce")
    devices: tuple[str, ...] = ("cuda",)

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace with one operation for additions that can run together."""
        if sum(self._is_increment(bsym) for bsym in trace.bound_symbols) < 2:
            return trace
        return trace.having(self._join(trace), made_by="increment together")

    def _join(self, trace: Trace) -> Iterator[BoundSymbol]:
        aliasing = alias_sets(trace.bound_symbols, trace.aliases)
        waiting: list[BoundSymbol] = []
        for bsym in trace.bound_symbols:
            is_increment = self._is_increment(bsym)
            waits = is_like(bsym, waiting) if is_increment else is_independent(bsym, waiting)
            if not waits or touches(bsym, waiting, aliasing):
                yield from merge_increments(waiting)
                waiting = []
            if is_increment:
                waiting.append(bsym)
            else:
                yield bsym
        yield from merge_increments(waiting)

    def _is_increment(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol adds an integer to an integer tensor in place, on a device of `devices`."""
        if bsym.symbol.target is not torch.Tensor.add_ or bsym.kwargs or len(bsym.args) != 2:
            return False
        counter, number = bsym.args
        is_integer = type(number) is int or (isinstance(number, NumberProxy) and isinstance(number.value, torch.SymInt))
        if not isinstance(counter, TensorProxy) or not is_integer or counter.device.type not in self.devices:
            return False
        return not (counter.dtype.is_floating_point or counter.dtype.is_complex or counter.dtype is torch.bool)


def is_like(bsym: BoundSymbol, increments: Sequence[BoundSymbol]) -> bool:
    """Whether an increment adds the same number as `increments`, to a tensor with the same dtype and device."""
    counter, number = bsym.args
    like = [(added.dtype, added.device, same) for added, same in (increment.args for increment in increments)]
    return all((counter.dtype, counter.device, number) == facts for facts in like)


def is_independent(bsym: BoundSymbol, increments: Sequence[BoundSymbol]) -> bool:
    """Whether increments may be delayed until after a bound symbol that uses none of their tensors."""
    if bsym.keeps_position or bsym.functions:
        return False
    return not may_raise(bsym) or all(asserts_on_gpu(bsym, increment.args[0].device) for increment in increments)


def touches(bsym: BoundSymbol, increments: Sequence[BoundSymbol], aliasing: AliasSets) -> bool:
    """Whether a bound symbol reads or writes memory that increments write to."""
    written = {aliasing.representative(increment.args[0].name) for increment in increments}
    return any(aliasing.representative(proxy.name) in written for proxy in (*bsym.inputs, *bsym.outputs))


def merge_increments(increments: Sequence[BoundSymbol]) -> tuple[BoundSymbol, ...]:
    """Return one bound symbol for several increments; a single increment stays as it is."""
    if len(increments) < 2:
        return tuple(increments)
    counters, number = [increment.args[0] for increment in increments], increments[0].args[1]
    operation = BoundSymbol(symbol_of(torch.ops.aten._foreach_add_.Scalar), (counters, number), {}, None)
    joined = replace(
        increments[-1],
        symbol=symbol_of(torch._foreach_add_),
        args=(counters, number),
        output=list(counters),
        subsymbols=(operation,),
        mutates=tuple(counter.name for counter in counters),
    )
    return (joined,)
