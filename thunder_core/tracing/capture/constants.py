"""Constant tensors: fakes whose values PyTorch stores, because the program made them from Python constants.

PyTorch computes with these values, writes to them, and uses them for `item()`. An operation with an unknown number must
not compute these values from the number's stand-in, so the values are removed during the operation.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.ir.tree import leaves


def has_symbolic_numbers(tree: object) -> bool:
    """Whether a symbolic number is among nested values."""
    return any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves(tree))


@contextmanager
def without_constants(arguments: object) -> Iterator[None]:
    """Remove the constants of fakes among nested arguments during the block."""
    constants = [(tensor, tensor.constant) for tensor in fakes_in(arguments) if tensor.constant is not None]
    for tensor, _ in constants:
        tensor.constant = None
    try:
        yield
    finally:
        for tensor, constant in constants:
            tensor.constant = constant


def constants_removed_for(arguments: object) -> AbstractContextManager[None]:
    """Remove the constants of fakes among nested arguments during the block if symbolic numbers are among them."""
    return without_constants(arguments) if has_symbolic_numbers(arguments) else nullcontext()


def forget_constants(arguments: object, output: object, written: Container[int]) -> None:
    """Remove the constants of the tensors that a call returned, and of those whose memory it has `written` to.

    Tensors that share memory with them lose their constants too.
    """
    for tensor in fakes_in(arguments):
        if tensor.constant is not None and memory_of(tensor) in written:
            forget_constant(tensor)
    for tensor in fakes_in(output):
        forget_constant(tensor)


def forget_constant(tensor: FakeTensor) -> None:
    """Remove the constants of a tensor and of the tensors that share its memory."""
    if tensor.constant is not None:
        tensor.fake_mode.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)
        tensor.constant = None


def fakes_in(tree: object) -> Iterator[FakeTensor]:
    """Yield the fakes among nested values."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, FakeTensor))
