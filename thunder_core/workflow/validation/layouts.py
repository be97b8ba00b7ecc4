"""A check that each tensor has, at run time, the shape, strides and dtype that its bound symbol was derived with.

A program follows from metadata: the derivative of a bound symbol, and the code that an executor compiled for it. A
running program does not check this metadata. Under a watch, a check follows each bound symbol that makes tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from thunder_core.backend.runtime.generate import rewriting_traces
from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.capture.torch_facts.strides import is_channels_last
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.literal import Scope
from thunder_core.tracing.ir.printer import statement
from thunder_core.tracing.ir.proxy import TensorProxy, with_sizes
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class Mismatch:
    """A tensor whose metadata differs from the metadata that its bound symbol was derived with."""

    bsym: BoundSymbol
    proxy: TensorProxy
    actual: str

    @property
    def source(self) -> SourceLine | None:
        """The user's source line; for a derivative, the line of the differentiated bound symbol."""
        return self.bsym.source or (self.bsym.derives.source if self.bsym.derives else None)

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        derived = describe(self.proxy.shape, self.proxy.stride, self.proxy.dtype)
        return f"`{statement(self.bsym, Scope())}`{where}: `{self.proxy.name}` is {self.actual}, derived as {derived}"


class LayoutWatch:
    """The checked tensors, by the numbers of their checks, and the mismatches found."""

    def __init__(self, *, exactly: bool = False) -> None:
        self._exactly = exactly
        self._wanted: list[tuple[BoundSymbol, TensorProxy]] = []
        self._found: dict[int, Mismatch] = {}
        self._sizes = _Sizes()

    @property
    def mismatches(self) -> list[Mismatch]:
        """The mismatches so far, at most one for each check, in the order of their discovery."""
        return list(self._found.values())

    def rewriting(self, trace: Trace) -> Trace:
        """Return the trace with checks of the tensors after each bound symbol that makes tensors."""
        return trace.having(self._bsyms(trace), made_by="look at layouts")

    def _bsyms(self, trace: Trace) -> Iterator[BoundSymbol]:
        for bsym in trace.bound_symbols:
            yield bsym
            for proxy in bsym.tensors:
                if len(proxy.stride) == len(proxy.shape):
                    self._wanted.append((bsym, proxy))
                    yield BoundSymbol(LOOK, (len(self._wanted) - 1, proxy), {}, None, (), bsym.source, bsym.module)

    def look(self, number: int, actual: object) -> None:
        """Record a tensor that differs from its proxy."""
        bsym, proxy = self._wanted[number]
        if not isinstance(actual, torch.Tensor):
            return
        if differs(actual, self._sizes.in_call(number, proxy, actual), exactly=self._exactly):
            description = describe(actual.shape, actual.stride(), actual.dtype)
            self._found.setdefault(number, Mismatch(bsym, proxy, description))


class _Sizes:
    """The values of symbols in the running call, as far as the tensors so far have shown them.

    The checks of a call run in ascending order, so a check whose number is not higher belongs to another call.
    """

    def __init__(self) -> None:
        self._last = -1
        self._values: dict[sympy.Basic, int] = {}

    def in_call(self, number: int, proxy: TensorProxy, actual: torch.Tensor) -> TensorProxy:
        """Return the proxy with integers for symbolic sizes; a size that no tensor has shown counts as found.

        No condition on a symbol is decided here: the program is compiled, so a new constraint would not be checked.
        """
        if number <= self._last:
            self._values.clear()
        self._last = number
        if not any(isinstance(size, torch.SymInt) for size in (*proxy.shape, *proxy.stride)):
            return proxy
        if actual.dim() != len(proxy.shape):
            at_hints: TensorProxy = with_sizes(proxy, hint_of)
            return at_hints
        shape = [self._value(*pair) for pair in zip(proxy.shape, actual.shape, strict=True)]
        stride = [self._value(*pair) for pair in zip(proxy.stride, actual.stride(), strict=True)]
        return replace(proxy, shape=tuple(shape), stride=tuple(stride))

    def _value(self, size: Any, actual: int) -> int:
        if not isinstance(size, torch.SymInt):
            return int(size)
        if size.node.expr.is_Symbol:
            return self._values.setdefault(size.node.expr, actual)
        value = size.node.expr.xreplace(self._values)
        return int(value) if value.is_Integer else actual


_watching: list[LayoutWatch] = []


def look(number: int, actual: object) -> None:
    """Check a tensor of a bound symbol, in a watched program."""
    for watch in _watching:
        watch.look(number, actual)


LOOK = symbol_of(look)


@contextmanager
def check_layouts(*, exactly: bool = False) -> Iterator[LayoutWatch]:
    """Within this context, all programs check each tensor that they make, and record mismatches.

    With `exactly`, the strides of dimensions of size one matter too. Programs from artifacts are not checked: only the
    text of their bound symbols is known.
    """
    watch = LayoutWatch(exactly=exactly)
    _watching.append(watch)
    try:
        with rewriting_traces(watch.rewriting):
            yield watch
    finally:
        _watching.remove(watch)


def differs(tensor: torch.Tensor, proxy: TensorProxy, *, exactly: bool = False) -> bool:
    """Whether a tensor differs from a proxy in metadata that kernels and derivatives depend on.

    Strides do not matter if there are no elements. Strides of dimensions of size one matter if they decide which memory
    format the tensor suggests, or with `exactly`. Symbolic sizes and strides match any value.
    """
    if len(tensor.shape) != len(proxy.shape) or tensor.dtype != proxy.dtype or tensor.layout is not torch.strided:
        return True
    if tuple(tensor.shape) != with_symbolic_from(tensor.shape, proxy.shape):
        return True
    shape, strides, derived_strides = (
        tensor.shape,
        tuple(tensor.stride()),
        with_symbolic_from(tensor.stride(), proxy.stride),
    )
    if strides == derived_strides or not tensor.numel():
        return False
    if exactly or any(
        size > 1 and stride != wanted_stride
        for size, stride, wanted_stride in zip(shape, strides, derived_strides, strict=True)
    ):
        return True
    return is_channels_last(shape, strides) != is_channels_last(shape, derived_strides)


def with_symbolic_from(sizes: Sequence[int], expressions: Sequence[Any]) -> tuple[int, ...]:
    """Return the wanted sizes or strides, with the tensor's own values in place of symbolic ones."""
    return tuple(
        expression if type(expression) is int else size for size, expression in zip(sizes, expressions, strict=True)
    )


def describe(shape: Any, strides: Any, dtype: torch.dtype) -> str:
    """Describe a tensor's metadata."""
    return f"{dtype} of shape {list(shape)} and strides {list(strides)}"
