"""Quantities that tensors tell, by which operations have so many results: counts and numbers of values."""

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
    """An integer that a tensor tells: in words, as the text of an expression of its name, and as a function of it."""

    words: str
    text: str
    of: Callable[[torch.Tensor], Any]


COUNT = Quantity("count of elements that are not zero", "int(torch.count_nonzero({}))", torch.count_nonzero)
VALUE = Quantity("value of a tensor", "{}.item()", torch.Tensor.item)
NUMBER = Quantity("number that values of tensors make", "{}", int)
Told = tuple[torch.Tensor, Quantity]
Arguments = dict[str, Any]


def told(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Told | None:
    """The tensor that decides how many results a call has, and the quantity; None where there is not one alone."""
    if function not in QUANTITIES:
        return None
    names, rule = QUANTITIES[function]
    return rule(function, dict(zip(names, args, strict=False)) | dict(kwargs))


def of_index(function: Callable[..., Any], given: Arguments) -> Told | None:
    """`x[mask]`: the count of the mask."""
    indices = tensors_in(given["index"])
    is_mask = len(indices) == 1 and indices[0].dtype in MASKS and indices[0].dim()
    return (indices[0], COUNT) if is_mask else None


def of_nonzero(function: Callable[..., Any], given: Arguments) -> Told | None:
    """`nonzero(x)`, and `where(x)` of one tensor alone."""
    is_choice = function is torch.where and len(given) > 1
    return None if is_choice else (given["input"], COUNT)


def of_selection(function: Callable[..., Any], given: Arguments) -> Told | None:
    """`masked_select(x, mask)` of two tensors of the same shape for all sizes."""
    shapes = [comparison_keys(given[name].shape) for name in ("input", "mask")]
    return (given["mask"], COUNT) if shapes[0] == shapes[1] else None


def of_bins(function: Callable[..., Any], given: Arguments) -> Told | None:
    """`bincount(x)`: one more than the greatest of `x`, or `minlength`."""
    least = given.get("minlength", 0)
    if type(least) is not int:
        return None

    def bins(tensor: torch.Tensor) -> int:
        return max(int(tensor.max()) + 1, least)

    return given["input"], Quantity("number of bins", f"max(int({{}}.max()) + 1, {least})", bins)


def of_unique(function: Callable[..., Any], given: Arguments) -> Told | None:
    """`unique(x)` and `unique_consecutive(x)`: the number of values, or of slices that differ."""
    dim = given.get("dim")
    if dim is not None and type(dim) is not int:
        return None
    distinct = torch.unique_consecutive if function in CONSECUTIVE else torch.unique

    def number(tensor: torch.Tensor) -> int:
        values = distinct(tensor, dim=dim)
        return int(values.shape[dim or 0])

    text = f"torch.{distinct.__name__}({{}}, dim={dim}).shape[{dim or 0}]"
    return given["input"], Quantity("number of values that differ", text, number)


CONSECUTIVE = frozenset({torch.functional.unique_consecutive, torch.Tensor.unique_consecutive})
UNIQUE = ("input", "sorted", "return_inverse", "return_counts", "dim")
UNIQUE_CONSECUTIVE = ("input", "return_inverse", "return_counts", "dim")
INPUT = ("input",)
# For each function the names of its parameters, as far as they matter, and what tells how many results it has.
QUANTITIES: Mapping[Callable[..., Any], tuple[Sequence[str], Callable[..., Told | None]]] = {
    torch.Tensor.__getitem__: (("input", "index"), of_index),
    **dict.fromkeys((torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere), (INPUT, of_nonzero)),
    torch.where: (("input", "first", "second"), of_nonzero),
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), (("input", "mask"), of_selection)),
    **dict.fromkeys((torch.bincount, torch.Tensor.bincount), (("input", "weights", "minlength"), of_bins)),
    **dict.fromkeys((torch.functional.unique, torch.Tensor.unique), (UNIQUE, of_unique)),
    **dict.fromkeys(CONSECUTIVE, (UNIQUE_CONSECUTIVE, of_unique)),
}
