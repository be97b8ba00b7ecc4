"""Quantities that the prologue computes from a tensor, such as the number of nonzero elements.

A table maps functions with a result size that depends on values to the quantity that determines this size.
"""

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
    """A value that is computed from a tensor or number: an integer or, for `TENSOR`, a copy of the tensor.

    `description` is a noun phrase for messages. `expression` is the Python expression that the prologue runs, with
    `{}` for the name of the tensor. `compute` returns the value for a tensor.
    """

    description: str
    expression: str
    compute: Callable[[torch.Tensor], Any]


COUNT = Quantity("count of nonzero elements", "int(torch.count_nonzero({}))", torch.count_nonzero)
VALUE = Quantity("value of a tensor", "{}.item()", torch.Tensor.item)
TENSOR = Quantity("tensor", "{}.clone()", torch.clone)
NUMBER = Quantity("number computed from values of tensors", "{}", int)
TensorAndQuantity = tuple[torch.Tensor, Quantity]
Arguments = dict[str, Any]


def find_quantity(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TensorAndQuantity | None:
    """Return the tensor and its quantity that determine the result size of a call.

    Return None if no value of a tensor determines this size, or if the table has no rule for the call.
    """
    if function not in QUANTITIES:
        return None
    names, rule = QUANTITIES[function]
    return rule(function, dict(zip(names, args, strict=False)) | dict(kwargs))


def index_quantity(function: Callable[..., Any], arguments: Arguments) -> TensorAndQuantity | None:
    """Return the mask and its count for `x[mask]`."""
    indices = tensors_in(arguments["index"])
    is_mask = len(indices) == 1 and indices[0].dtype in MASKS and indices[0].dim()
    return (indices[0], COUNT) if is_mask else None


def nonzero_quantity(function: Callable[..., Any], arguments: Arguments) -> TensorAndQuantity | None:
    """Return `x` and its count for `nonzero(x)`, and for `where(x)` with one argument."""
    has_branches = function is torch.where and len(arguments) > 1
    return None if has_branches else (arguments["input"], COUNT)


def selection_quantity(function: Callable[..., Any], arguments: Arguments) -> TensorAndQuantity | None:
    """Return the mask and its count for `masked_select(x, mask)`; None if the operation may broadcast one of them."""
    shapes = [comparison_keys(arguments[name].shape) for name in ("input", "mask")]
    return (arguments["mask"], COUNT) if shapes[0] == shapes[1] else None


def bins_quantity(function: Callable[..., Any], arguments: Arguments) -> TensorAndQuantity | None:
    """Return `x` and the number of bins for `bincount(x)`: the maximum of `x` plus 1, and at least `minlength`."""
    min_length = arguments.get("minlength", 0)
    if type(min_length) is not int:
        return None

    def bins(tensor: torch.Tensor) -> int:
        return max(int(tensor.max()) + 1, min_length)

    return arguments["input"], Quantity("number of bins", f"max(int({{}}.max()) + 1, {min_length})", bins)


def unique_quantity(function: Callable[..., Any], arguments: Arguments) -> TensorAndQuantity | None:
    """Return `x` and the number of distinct values or slices for `unique(x)` and `unique_consecutive(x)`."""
    dim = arguments.get("dim")
    if dim is not None and type(dim) is not int:
        return None
    distinct = torch.unique_consecutive if function in CONSECUTIVE else torch.unique

    def number(tensor: torch.Tensor) -> int:
        values = distinct(tensor, dim=dim)
        return int(values.shape[dim or 0])

    text = f"torch.{distinct.__name__}({{}}, dim={dim}).shape[{dim or 0}]"
    return arguments["input"], Quantity("number of distinct values", text, number)


CONSECUTIVE = frozenset({torch.functional.unique_consecutive, torch.Tensor.unique_consecutive})
UNIQUE = ("input", "sorted", "return_inverse", "return_counts", "dim")
UNIQUE_CONSECUTIVE = ("input", "return_inverse", "return_counts", "dim")
INPUT = ("input",)
# For each function, the names of its first parameters, and the rule that returns the tensor and its quantity.
QUANTITIES: Mapping[Callable[..., Any], tuple[Sequence[str], Callable[..., TensorAndQuantity | None]]] = {
    torch.Tensor.__getitem__: (("input", "index"), index_quantity),
    **dict.fromkeys(
        (torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere), (INPUT, nonzero_quantity)
    ),
    torch.where: (("input", "first", "second"), nonzero_quantity),
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), (("input", "mask"), selection_quantity)),
    **dict.fromkeys((torch.bincount, torch.Tensor.bincount), (("input", "weights", "minlength"), bins_quantity)),
    **dict.fromkeys((torch.functional.unique, torch.Tensor.unique), (UNIQUE, unique_quantity)),
    **dict.fromkeys(CONSECUTIVE, (UNIQUE_CONSECUTIVE, unique_quantity)),
}
