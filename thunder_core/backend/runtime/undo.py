"""Undo the writes of a computation that has stopped, before the call is repeated by another program.

A computation stops if a tensor value differs from the value at tracing, or if an operation raises an error that the
program catches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from thunder_core.backend.runtime.randomness import RandomState
from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.capture.torch_facts.compiled_call import CompiledCall
from thunder_core.tracing.capture.torch_facts.slices import written_names
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.objects import CHECK_NAMES


def inputs_written_before_last_check(computation: Trace) -> tuple[int, ...] | None:
    """Return the indices of the inputs that a computation may have written to when its last check of a value fails.

    Returns None for a computation that checks no values.
    """
    bsyms = computation.bound_symbols
    last = max((position for position, bsym in enumerate(bsyms) if checks_value(bsym)), default=None)
    if last is None:
        return None
    return _written_inputs(computation, last + 1)


def inputs_written_before_caught_error(computation: Trace, lines: Collection[SourceLine]) -> tuple[int, ...] | None:
    """Return the indices of the inputs that a computation may write to before an error that the program catches.

    The error comes from an operation at one of the `lines`, so all writes up to the last operation at these lines
    count. Returns None for a computation without an operation at these lines.
    """
    bsyms = computation.bound_symbols
    at_lines = (position for position, bsym in enumerate(bsyms) if not lines_of(bsym).isdisjoint(lines))
    last = max(at_lines, default=None)
    if last is None:
        return None
    return _written_inputs(computation, last + 1)


def _written_inputs(computation: Trace, count: int) -> tuple[int, ...]:
    """Return the indices of the inputs whose data the first `count` bound symbols may write to or replace."""
    before = computation.bound_symbols[:count]
    written = names_written_to(computation.having(before, made_by=computation.made_by))
    names_written_or_replaced = written | {name for bsym in before for name in written_names(bsym)}
    return tuple(index for index, proxy in enumerate(computation.inputs) if proxy.name in names_written_or_replaced)


def lines_of(bsym: BoundSymbol) -> set[SourceLine]:
    """Return the user's source lines of a bound symbol and of its inner operations."""
    lines = set() if bsym.source is None else {bsym.source}
    return lines.union(*map(lines_of, bsym.subsymbols))


def checks_value(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol may stop the computation because a tensor value differs from the value at tracing.

    Its operation is one of `CHECK_NAMES`, or a compiled function whose control flow depends on tensor values.
    """
    target = bsym.symbol.target
    return bsym.symbol.name in CHECK_NAMES or (isinstance(target, CompiledCall) and target.depends_on_values)


class Undo:
    """A copy of the state that a computation may change before it stops.

    The state consists of the contents and the autograd histories of the inputs at the indices `written`, and of the
    states of the random number generators.
    """

    def __init__(self, inputs: Sequence[Any], written: Sequence[int]) -> None:
        self._tensors = [TensorBefore(inputs[index]) for index in written if isinstance(inputs[index], torch.Tensor)]
        self._random_state = RandomState.now(inputs)

    def put_back(self) -> None:
        """Restore the state."""
        for tensor in self._tensors:
            tensor.put_back()
        self._random_state.put_back()


class TensorBefore:
    """The state of a tensor before a computation: its memory, its contents and its autograd history.

    `memory` is an alias of the tensor, in case its `.data` is replaced. `contents` is a copy that autograd records. If
    the tensor's history has changed, the tensor is detached, and autograd records that the contents are copied back.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.memory = tensor, tensor.detach()
        self.history = (tensor.requires_grad, tensor.grad_fn)
        with torch.enable_grad():  # the program may record a write although the call does not
            self.contents = without_repetition(tensor).clone()

    def put_back(self) -> None:
        """Restore the memory, the contents, and the history if it has changed."""
        with torch.no_grad():
            if self.tensor.layout is not torch.strided:  # a sparse tensor shares no single memory with an alias
                self.tensor.copy_(self.contents)
            else:
                if not is_same_memory(self.tensor, self.memory):
                    self.tensor.data = self.memory
                without_repetition(self.memory).copy_(self.contents)
        if (self.tensor.requires_grad, self.tensor.grad_fn) == self.history:
            return
        if not self.tensor._is_view():
            self.tensor.detach_()
        if self.contents.requires_grad or self.tensor.requires_grad:
            with torch.enable_grad():
                without_repetition(self.tensor).copy_(self.contents)


def is_same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same memory, dtype, shape and strides."""
    facts = [(value.data_ptr(), value.dtype, value.shape, value.stride()) for value in (tensor, other)]
    return facts[0] == facts[1]


def without_repetition(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor in which no element of an expanded dimension is repeated, so that it can be written to.

    PyTorch refuses to write to a tensor with repeated elements.
    """
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    for dimension, stride in enumerate(strides):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor
