"""Constant tensors: those without data whose values PyTorch knows, since the program made them of constants.

PyTorch computes with these values, writes to them, and answers `item()` by them. What stands in for a number that is
not known must not get there, so they are set aside where an operation takes such a number.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.ir.tree import leaves


def has_symbolic_numbers(tree: Any) -> bool:
    """Whether there are symbolic numbers among nested values."""
    return any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves(tree))


@contextmanager
def constants_set_aside(arguments: Any) -> Iterator[None]:
    """While this lasts, tensors without data among nested arguments do not know the constants that they are."""
    constants = [(tensor, tensor.constant) for tensor in fakes_in(arguments) if tensor.constant is not None]
    for tensor, _ in constants:
        tensor.constant = None
    try:
        yield
    finally:
        for tensor, constant in constants:
            tensor.constant = constant


def constants_for(arguments: Any) -> AbstractContextManager[None]:
    """While this lasts, tensors without data are no constants to an operation that takes symbolic numbers."""
    return constants_set_aside(arguments) if has_symbolic_numbers(arguments) else nullcontext()


def forget_constants(arguments: Any, output: Any, written: Container[int]) -> None:
    """Have tensors that a call made, or whose memories it has `written` to, not be known as constants any more.

    Nor are those that share memory with them.
    """
    for tensor in fakes_in(arguments):
        if tensor.constant is not None and memory_of(tensor) in written:
            forget_constant(tensor)
    for tensor in fakes_in(output):
        forget_constant(tensor)


def forget_constant(tensor: FakeTensor) -> None:
    """Have a tensor, and those that share its memory, not be known as constants any more."""
    if tensor.constant is not None:
        tensor.fake_mode.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)
        tensor.constant = None


def fakes_in(tree: Any) -> Iterator[FakeTensor]:
    """The tensors without data among nested values."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, FakeTensor))
