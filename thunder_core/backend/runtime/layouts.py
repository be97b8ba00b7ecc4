"""A check that each tensor that runs has the shape, the strides and the dtype with which its bound symbol was derived.

A program follows from metadata: which derivative a bound symbol has, and what an executor compiled for it.
Nothing of this is looked at while a program runs; where it is looked for, the program runs with a bound symbol behind
each bound symbol that does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from thunder_core.backend.runtime.generate import rewritten
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
    """A tensor of a bound symbol that is not what the bound symbol was derived with."""

    bsym: BoundSymbol
    proxy: TensorProxy
    actual: str

    @property
    def source(self) -> SourceLine | None:
        """The user's line, or that whose derivative it is part of."""
        return self.bsym.source or (self.bsym.derives.source if self.bsym.derives else None)

    def __str__(self) -> str:
        place = f" ({self.source})" if self.source else ""
        wanted = described(self.proxy.shape, self.proxy.stride, self.proxy.dtype)
        return f"`{statement(self.bsym, Scope())}`{place}: `{self.proxy.name}` is {self.actual}, derived as {wanted}"


class LayoutWatch:
    """The tensors that are looked for, by the numbers of the bound symbols that look, and the mismatches found."""

    def __init__(self, *, exactly: bool = False) -> None:
        self._exactly = exactly
        self._wanted: list[tuple[BoundSymbol, TensorProxy]] = []
        self._found: dict[int, Mismatch] = {}
        self._sizes = _Sizes()

    @property
    def mismatches(self) -> list[Mismatch]:
        """The mismatches so far, one for each name of a bound symbol, in the order of their discovery."""
        return list(self._found.values())

    def rewriting(self, trace: Trace) -> Trace:
        """The trace with a look at the tensors behind each bound symbol that makes some."""
        return trace.having(self._bsyms(trace), made_by="look at layouts")

    def _bsyms(self, trace: Trace) -> Iterator[BoundSymbol]:
        for bsym in trace.bound_symbols:
            yield bsym
            for proxy in bsym.tensors:
                if len(proxy.stride) == len(proxy.shape):
                    self._wanted.append((bsym, proxy))
                    yield BoundSymbol(LOOK, (len(self._wanted) - 1, proxy), {}, None, (), bsym.source, bsym.module)

    def look(self, number: int, found: Any) -> None:
        """Note a tensor that is not what it was derived as."""
        bsym, proxy = self._wanted[number]
        if not isinstance(found, torch.Tensor):
            return
        if differs(found, self._sizes.in_call(number, proxy, found), exactly=self._exactly):
            told = described(found.shape, found.stride(), found.dtype)
            self._found.setdefault(number, Mismatch(bsym, proxy, told))


class _Sizes:
    """The values of symbols in the call that runs, as far as the tensors so far have told them.

    The looks of a call come in their order, so one that is not behind the last belongs to another call.
    """

    def __init__(self) -> None:
        self._last = -1
        self._values: dict[sympy.Basic, int] = {}

    def in_call(self, number: int, proxy: TensorProxy, found: torch.Tensor) -> TensorProxy:
        """The proxy with integers for symbolic sizes; what no tensor has told is as it was found.

        Nothing is decided by a symbol here: the program is compiled, and no constraint would be checked any more.
        """
        if number <= self._last:
            self._values.clear()
        self._last = number
        if not any(isinstance(size, torch.SymInt) for size in (*proxy.shape, *proxy.stride)):
            return proxy
        if found.dim() != len(proxy.shape):
            at_hints: TensorProxy = with_sizes(proxy, hint_of)
            return at_hints
        shape = [self._value(*pair) for pair in zip(proxy.shape, found.shape, strict=True)]
        stride = [self._value(*pair) for pair in zip(proxy.stride, found.stride(), strict=True)]
        return replace(proxy, shape=tuple(shape), stride=tuple(stride))

    def _value(self, size: Any, found: int) -> int:
        if not isinstance(size, torch.SymInt):
            return int(size)
        if size.node.expr.is_Symbol:
            return self._values.setdefault(size.node.expr, found)
        value = size.node.expr.xreplace(self._values)
        return int(value) if value.is_Integer else found


_watching: list[LayoutWatch] = []


def look(number: int, found: object) -> None:
    """Look at a tensor of a bound symbol, in a program that is watched."""
    for watch in _watching:
        watch.look(number, found)


LOOK = symbol_of(look)


@contextmanager
def layouts_watched(*, exactly: bool = False) -> Iterator[LayoutWatch]:
    """While this lasts, all programs look at each tensor that they make; what is not as it was derived is noted.

    With `exactly`, the strides of all dimensions of size one matter, too. Programs from artifacts do not take part: of
    their bound symbols nothing is known but the text.
    """
    watch = LayoutWatch(exactly=exactly)
    _watching.append(watch)
    try:
        with rewritten(watch.rewriting):
            yield watch
    finally:
        _watching.remove(watch)


def differs(found: torch.Tensor, proxy: TensorProxy, *, exactly: bool = False) -> bool:
    """Whether a tensor is another than a proxy says, in what kernels and derivatives go by.

    Strides do not matter where there are no elements; those of dimensions of size one do where they decide which memory
    format the tensor suggests, or with `exactly`. Symbolic sizes and strides are whatever they are.
    """
    if len(found.shape) != len(proxy.shape) or found.dtype != proxy.dtype or found.layout is not torch.strided:
        return True
    if tuple(found.shape) != with_symbolic_from(found.shape, proxy.shape):
        return True
    shape, strides, wanted = found.shape, tuple(found.stride()), with_symbolic_from(found.stride(), proxy.stride)
    if strides == wanted or not found.numel():
        return False
    if exactly or any(size > 1 and one != other for size, one, other in zip(shape, strides, wanted, strict=True)):
        return True
    return is_channels_last(shape, strides) != is_channels_last(shape, wanted)


def with_symbolic_from(sizes: Sequence[int], wanted: Sequence[Any]) -> tuple[int, ...]:
    """The sizes or strides that are wanted, with what a tensor has for those that are symbolic."""
    return tuple(one if type(one) is int else size for size, one in zip(sizes, wanted, strict=True))


def described(shape: Any, strides: Any, dtype: torch.dtype) -> str:
    """A tensor's metadata in words."""
    return f"{dtype} of shape {list(shape)} and strides {list(strides)}"
