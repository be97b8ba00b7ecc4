"""Check that each tensor of a running program has the shape, strides and dtype of its proxy in the trace.

Derivatives and compiled code depend on the metadata in the trace, and a running program normally does not check it.
Within `check_layouts`, programs are generated with a check after each bound symbol that returns tensors.
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
    """A tensor of a running program whose metadata differs from the metadata of its proxy in the trace."""

    bsym: BoundSymbol
    proxy: TensorProxy
    actual: str

    @property
    def source(self) -> SourceLine | None:
        """The user's source line; for a derivative, the line of the differentiated bound symbol."""
        return self.bsym.source or (self.bsym.derives.source if self.bsym.derives else None)

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        traced = describe(self.proxy.shape, self.proxy.stride, self.proxy.dtype)
        return f"`{statement(self.bsym, Scope())}`{where}: `{self.proxy.name}` is {self.actual}; traced as {traced}"


class LayoutWatch:
    """The checks of tensors, each with an index, and the mismatches that they have found.

    With `exactly`, the strides of dimensions of size one must be equal, too.
    """

    def __init__(self, *, exactly: bool = False) -> None:
        self._exactly = exactly
        self._checks: list[tuple[BoundSymbol, TensorProxy]] = []
        self._mismatches: dict[int, Mismatch] = {}
        self._symbols = _SymbolValues()

    @property
    def mismatches(self) -> list[Mismatch]:
        """The mismatches so far, at most one for each check, in the order in which they were found."""
        return list(self._mismatches.values())

    def with_checks(self, trace: Trace) -> Trace:
        """Return the trace with a check after each bound symbol, for each tensor that the bound symbol returns."""
        return trace.having(self._checked_bsyms(trace), made_by="check layouts")

    def _checked_bsyms(self, trace: Trace) -> Iterator[BoundSymbol]:
        for bsym in trace.bound_symbols:
            yield bsym
            for proxy in bsym.tensors:
                if len(proxy.stride) == len(proxy.shape):
                    self._checks.append((bsym, proxy))
                    arguments = (len(self._checks) - 1, proxy)
                    yield BoundSymbol(CHECK_TENSOR, arguments, {}, None, (), bsym.source, bsym.module)

    def check(self, index: int, actual: object) -> None:
        """Record a mismatch if a tensor differs from the proxy of the check with this index."""
        bsym, proxy = self._checks[index]
        if not isinstance(actual, torch.Tensor):
            return
        if differs(actual, self._symbols.with_integers(index, proxy, actual), exactly=self._exactly):
            description = describe(actual.shape, actual.stride(), actual.dtype)
            self._mismatches.setdefault(index, Mismatch(bsym, proxy, description))


class _SymbolValues:
    """The values of symbols in the running call, inferred from the sizes and strides of the tensors checked so far.

    The checks of a call run in ascending order. A check whose index is not higher than the previous index begins
    another call.
    """

    def __init__(self) -> None:
        self._last_index = -1
        self._values: dict[sympy.Basic, int] = {}

    def with_integers(self, index: int, proxy: TensorProxy, actual: torch.Tensor) -> TensorProxy:
        """Return the proxy with integers in place of symbolic sizes and strides.

        A symbol without a value gets the actual size of this tensor, which then counts as correct. An expression with
        such a symbol also counts as correct. This method evaluates no condition on symbols: that would add a
        constraint, which the compiled prologue would not check.
        """
        if index <= self._last_index:
            self._values.clear()
        self._last_index = index
        if not any(isinstance(size, torch.SymInt) for size in (*proxy.shape, *proxy.stride)):
            return proxy
        if actual.dim() != len(proxy.shape):  # a mismatch for any values of the symbols
            proxy_with_hints: TensorProxy = with_sizes(proxy, hint_of)
            return proxy_with_hints
        shape = [self._value(*pair) for pair in zip(proxy.shape, actual.shape, strict=True)]
        stride = [self._value(*pair) for pair in zip(proxy.stride, actual.stride(), strict=True)]
        return replace(proxy, shape=tuple(shape), stride=tuple(stride))

    def _value(self, size: Any, actual: int) -> int:
        """Return the integer for one size or stride of a proxy."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        if size.node.expr.is_Symbol:
            return self._values.setdefault(size.node.expr, actual)
        value = size.node.expr.xreplace(self._values)
        return int(value) if value.is_Integer else actual


_active_watches: list[LayoutWatch] = []


def check_tensor(index: int, actual: object) -> None:
    """Check a tensor of a running program; generated code calls this function."""
    for watch in _active_watches:
        watch.check(index, actual)


CHECK_TENSOR = symbol_of(check_tensor)


@contextmanager
def check_layouts(*, exactly: bool = False) -> Iterator[LayoutWatch]:
    """Within this context, all programs check each tensor that they compute, and record mismatches.

    With `exactly`, the strides of dimensions of size one must be equal, too. Programs from artifacts are not checked:
    artifacts have the printed bound symbols only.
    """
    watch = LayoutWatch(exactly=exactly)
    _active_watches.append(watch)
    try:
        with rewriting_traces(watch.with_checks):
            yield watch
    finally:
        _active_watches.remove(watch)


def differs(tensor: torch.Tensor, proxy: TensorProxy, *, exactly: bool = False) -> bool:
    """Whether a tensor differs from a proxy in metadata that kernels and derivatives depend on.

    Strides do not matter if the tensor has no elements. Strides of dimensions of size one matter only if they change
    whether the tensor counts as channels-last, or with `exactly`. Symbolic sizes and strides match any value.
    """
    if len(tensor.shape) != len(proxy.shape) or tensor.dtype != proxy.dtype or tensor.layout is not torch.strided:
        return True
    if tuple(tensor.shape) != replace_symbolic(proxy.shape, tensor.shape):
        return True
    shape, strides, expected_strides = (
        tensor.shape,
        tuple(tensor.stride()),
        replace_symbolic(proxy.stride, tensor.stride()),
    )
    if strides == expected_strides or not tensor.numel():
        return False
    if exactly or any(
        size > 1 and stride != expected_stride
        for size, stride, expected_stride in zip(shape, strides, expected_strides, strict=True)
    ):
        return True
    return is_channels_last(shape, strides) != is_channels_last(shape, expected_strides)


def replace_symbolic(expected: Sequence[Any], actual: Sequence[int]) -> tuple[int, ...]:
    """Return the expected sizes or strides of a proxy, with a tensor's actual values in place of symbolic values."""
    return tuple(
        expected_size if type(expected_size) is int else size
        for expected_size, size in zip(expected, actual, strict=True)
    )


def describe(shape: Any, strides: Any, dtype: torch.dtype) -> str:
    """Return a description of a tensor's metadata."""
    return f"{dtype} of shape {list(shape)} and strides {list(strides)}"
