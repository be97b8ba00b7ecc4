"""Tensors that the program uses as numbers: `Tensor.tolist`, and tensors of one integer that are passed as integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.tree import leaves, replace_leaves

MAX_ITEMS = 64  # the most items that `tolist` returns as symbolic numbers; the values of larger tensors are guarded
INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})  # to an index, uint8 is a mask


class RetryWithNumbers(Exception):
    """A request to run an operation again, with symbolic numbers in place of its tensors of one integer.

    It is raised for an operation that reads tensor values and has such tensors among its arguments.
    """


def is_integer(leaf: object) -> bool:
    """Whether a value is a tensor of one integer, which Python converts to an `int` where it requires an integer."""
    return isinstance(leaf, torch.Tensor) and not leaf.dim() and leaf.dtype in INTEGERS


def has_integers(args: Any, kwargs: Any) -> bool:
    """Whether a tensor of one integer is among the arguments after the first."""
    return any(map(is_integer, leaves((tuple(args[1:]), dict(kwargs)))))


def with_numbers(args: tuple[Any, ...], kwargs: dict[str, Any], item: Callable[[torch.Tensor], Any]) -> tuple[Any, Any]:
    """Return the arguments after the first, with `item(tensor)` in place of each tensor that has one integer."""

    def number(leaf: Any) -> Any:
        return item(leaf) if is_integer(leaf) else leaf

    rest, named = replace_leaves((tuple(args[1:]), dict(kwargs)), number)
    return (*args[:1], *rest), named


def has_few_items(fake: torch.Tensor) -> bool:
    """Whether `tolist` may return symbolic numbers: the tensor has at most `MAX_ITEMS` integers or floats."""
    if fake.layout is not torch.strided or fake.is_complex() or fake.dtype is torch.bool:
        return False
    return getattr(fake, "constant", None) is None and 0 < math.prod(map(hint_of, fake.shape)) <= MAX_ITEMS


def nest(numbers: list[Any], shape: tuple[int, ...]) -> Any:
    """Return numbers as nested lists of a shape, as `Tensor.tolist` does."""
    if not shape:
        return numbers[0]
    step = len(numbers) // shape[0]
    return [nest(numbers[index * step : (index + 1) * step], shape[1:]) for index in range(shape[0])]


def items(
    tensor: torch.Tensor,
    fake: torch.Tensor,
    record: Callable[..., Any],
    item: Callable[[torch.Tensor, type], Any],
) -> Any:
    """Return `tensor.tolist()` with symbolic numbers.

    `record(function, args, kwargs)` runs a function, and `item(tensor, kind)` returns the number of a tensor with one
    element. The length of the list is a Python integer, so symbolic sizes are constrained to the sizes of this call.
    """
    shape, kind = tuple(map(int, fake.shape)), float if fake.is_floating_point() else int
    if not fake.dim():
        return item(tensor, kind)
    flat = record(torch.Tensor.flatten, (record(torch.Tensor.detach, (tensor,), {}),), {})
    return nest([item(element, kind) for element in record(torch.Tensor.unbind, (flat,), {})], shape)
