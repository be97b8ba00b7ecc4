"""Quantities of tensors that determine the number of results of an operation, such as counts of nonzero elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.torch_facts.indexing import MASKS
from thunder_core.tracing.ir.sizes import comparison_keys


@dataclass(frozen=True)
class Quantity:
    """An integer that a tensor determines.

    `words` describes the quantity, `text` is a format string for the expression with the tensor's name, and `of`
    computes the quantity from the tensor.
    """

    words: str
    text: str
    of: Callable[[torch.Tensor], Any]


COUNT = Quantity("count of nonzero elements", "int(torch.count_nonzero({}))", torch.count_nonzero)
VALUE = Quantity("value of a tensor", "{}.item()", torch.Tensor.item)
TENSOR = Quantity("tensor", "{}.clone()", torch.clone)
NUMBER = Quantity("number computed from values of tensors", "{}", int)
Told = tuple[torch.Tensor, Quantity]
Arguments = dict[str, Any]


def find_quantity(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Told | None:
    """Return the tensor and the quantity that determine the number of results of a call.

    Return None if the number does not depend on a single tensor.
    """
    if function not in QUANTITIES:
        return None
    names, rule = QUANTITIES[function]
    return rule(function, dict(zip(names, args, strict=False)) | dict(kwargs))


def of_index(function: Callable[..., Any], given: Arguments) -> Told | None:
    """Return the mask and its count for `x[mask]`."""
    indices = tensors_in(given["index"])
    is_mask = len(indices) == 1 and indices[0].dtype in MASKS and indices[0].dim()
    return (indices[0], COUNT) if is_mask else None


def of_nonzero(function: Callable[..., Any], given: Arguments) -> Told | None:
    """Return `x` and its count for `nonzero(x)`, and for `where(x)` with one argument."""
    is_choice = function is torch.where and len(given) > 1
    return None if is_choice else (given["input"], COUNT)


def of_selection(function: Callable[..., Any], given: Arguments) -> Told | None:
    """Return the mask and its count for `masked_select(x, mask)`, if both shapes are equal for all sizes."""
    shapes = [comparison_keys(given[name].shape) for name in ("input", "mask")]
    return (given["mask"], COUNT) if shapes[0] == shapes[1] else None


def of_bins(function: Callable[..., Any], given: Arguments) -> Told | None:
    """Return `x` and the number of bins for `bincount(x)`: the maximum of `x` plus 1, and at least `minlength`."""
    least = given.get("minlength", 0)
    if type(least) is not int:
        return None

    def bins(tensor: torch.Tensor) -> int:
        return max(int(tensor.max()) + 1, least)

    return given["input"], Quantity("number of bins", f"max(int({{}}.max()) + 1, {least})", bins)


def of_unique(function: Callable[..., Any], given: Arguments) -> Told | None:
    """Return `x` and the number of distinct values or slices for `unique(x)` and `unique_consecutive(x)`."""
    dim = given.get("dim")
    if dim is not None and type(dim) is not int:
        return None
    distinct = torch.unique_consecutive if function in CONSECUTIVE else torch.unique

    def number(tensor: torch.Tensor) -> int:
        values = distinct(tensor, dim=dim)
        return int(values.shape[dim or 0])

    text = f"torch.{distinct.__name__}({{}}, dim={dim}).shape[{dim or 0}]"
    return given["input"], Quantity("number of distinct values", text, number)


CONSECUTIVE = frozenset({torch.functional.unique_consecutive, torch.Tensor.unique_consecutive})
UNIQUE = ("input", "sorted", "return_inverse", "return_counts", "dim")
UNIQUE_CONSECUTIVE = ("input", "return_inverse", "return_counts", "dim")
INPUT = ("input",)
# For each function, the names of its relevant parameters, and the rule that returns the tensor and the quantity.
QUANTITIES: Mapping[Callable[..., Any], tuple[Sequence[str], Callable[..., Told | None]]] = {
    torch.Tensor.__getitem__: (("input", "index"), of_index),
    **dict.fromkeys((torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere), (INPUT, of_nonzero)),
    torch.where: (("input", "first", "second"), of_nonzero),
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), (("input", "mask"), of_selection)),
    **dict.fromkeys((torch.bincount, torch.Tensor.bincount), (("input", "weights", "minlength"), of_bins)),
    **dict.fromkeys((torch.functional.unique, torch.Tensor.unique), (UNIQUE, of_unique)),
    **dict.fromkeys(CONSECUTIVE, (UNIQUE_CONSECUTIVE, of_unique)),
}
