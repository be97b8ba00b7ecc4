"""Rewrites of calls that read a symbolic integer: an index, steps, classes, or items of a new tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType, NoneType
from typing import Any

import torch
from torch._refs import tril_indices, triu_indices
from torch._subclasses.fake_tensor import DataDependentOutputException

from thunder_core.tracing.capture.symbolic.all_sizes import Call, rewrites
from thunder_core.tracing.ir.tree import leaves

BASIC_INDEX = frozenset({int, slice, NoneType, EllipsisType})
OPTIONS = frozenset({"dtype", "device"})
RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
# For these functions, only the metadata is computed by the rewrite; the program runs the function itself.
OPAQUE: frozenset[Callable[..., Any]] = frozenset({torch.linspace, torch._C._nn.one_hot})


# ---- indexing -----------------------------------------------------------------------------------------------


@rewrites(torch.Tensor.__getitem__, always=True)
def get_item(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `x[n]` as `x.select(0, n)`."""
    return (select, args, kwargs) if is_basic(args[1]) else None


@rewrites(torch.Tensor.__setitem__, always=True)
def set_item(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `x[n] = value` as a write to `x.select(0, n)`, and `x[:, index] = value` as `index_put_`."""
    if is_basic(args[1]):
        return write_at_index, args, kwargs
    return (store_by_index, args, kwargs) if is_broadcast_by_index(*args) else None


def entries_of(index: object) -> tuple[Any, ...]:
    """Return the entries of an index as a tuple: an index that is not a tuple is its only entry."""
    return index if type(index) is tuple else (index,)


def is_basic(index: object) -> bool:
    """Whether an index contains symbolic integers, and otherwise only entries that select a view."""
    symbolic = [isinstance(entry, torch.SymInt) for entry in entries_of(index)]
    return any(symbolic) and all(
        is_symbolic or type(entry) in BASIC_INDEX
        for is_symbolic, entry in zip(symbolic, entries_of(index), strict=True)
    )


def select(tensor: torch.Tensor, index: object) -> torch.Tensor:
    """Return the view at an index: first index with the other entries, and then select at each symbolic integer."""
    entries = entries_of(index)
    consumed = sum(entry is not None and entry is not Ellipsis for entry in entries)
    plain: list[Any] = []
    selected: list[tuple[int, torch.SymInt]] = []
    dim = 0
    for entry in entries:
        if isinstance(entry, torch.SymInt):
            selected.append((dim, entry))
        plain.append(slice(None) if isinstance(entry, torch.SymInt) else entry)
        dim += tensor.dim() - consumed if entry is Ellipsis else type(entry) is not int
    view = tensor[tuple(plain)]
    for dim, number in reversed(selected):
        view = view.select(dim, number)
    return view


def write_at_index(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Write to the view at an index."""
    select(tensor, index)[...] = value


def is_broadcast_by_index(tensor: torch.Tensor, index: object, value: object) -> bool:
    """Whether `index_put_` can write a value at an index.

    The index must consist of slices and integer tensors. The value must have the dtype and device of the tensor, and no
    more dimensions than the elements at the index.
    """
    entries = entries_of(index)
    indices = [entry for entry in entries if isinstance(entry, torch.Tensor)]
    if not indices or not isinstance(value, torch.Tensor):
        return False
    if not all(type(entry) is slice or is_integer_tensor(entry) for entry in entries) or len(entries) > tensor.dim():
        return False
    dimensions = tensor.dim() - len(indices) + max(tensor_index.dim() for tensor_index in indices)
    return (value.dtype, value.device) == (tensor.dtype, tensor.device) and value.dim() <= dimensions


def is_integer_tensor(entry: object) -> bool:
    """Whether an entry of an index is a tensor of integers, which selects elements of one dimension."""
    return isinstance(entry, torch.Tensor) and entry.dtype in (torch.int64, torch.int32)


def store_by_index(tensor: torch.Tensor, index: object, value: torch.Tensor) -> None:
    """Write a value with `index_put_` at an index of slices and tensors; its code does not decide whether sizes are
    one.
    """
    entries = entries_of(index)
    indices = [entry if isinstance(entry, torch.Tensor) else None for entry in entries]
    view = tensor[tuple(slice(None) if isinstance(entry, torch.Tensor) else entry for entry in entries)]
    torch.ops.aten.index_put_(view, indices, value)


# ---- tensors made of numbers --------------------------------------------------------------------------------


@rewrites(torch.tensor, torch.as_tensor, always=True)
def tensor_of_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `torch.tensor(n)` as `torch.full((), n)`, and the tensor of a list as a stack."""
    numbers = list(leaves(tuple(args[:1])))
    symbolic = [isinstance(number, torch.SymInt | torch.SymFloat) for number in numbers]
    plain = all(
        is_symbolic or type(number) in (int, float, bool) for is_symbolic, number in zip(symbolic, numbers, strict=True)
    )
    if not plain or not any(symbolic) or kwargs.keys() - OPTIONS:
        return None
    return tensor_of_lists, args, kwargs


def tensor_of_lists(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """Return a tensor of the numbers in nested lists."""
    if dtype is None:
        dtype = (
            torch.get_default_dtype()
            if any(isinstance(number, float | torch.SymFloat) for number in leaves(data))
            else torch.int64
        )
    if isinstance(data, Sequence):
        return torch.stack([tensor_of_lists(part, dtype, device) for part in data])
    return torch.full((), data, dtype=dtype, device=device)


# ---- sizes that the C++ of a function takes as integers -----------------------------------------------------


@rewrites(torch.linspace, always=True)
def linspace(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `torch.linspace(0, 1, n)` as an empty tensor of `n` floats, for its metadata."""
    arguments = dict(zip(("start", "end", "steps"), args, strict=False)) | dict(kwargs)
    ends = (arguments.get("start"), arguments.get("end"))
    plain = all(type(end) in (int, float) or isinstance(end, torch.SymInt) for end in ends)
    if (
        not isinstance(arguments.get("steps"), torch.SymInt)
        or not plain
        or arguments.keys() - {"start", "end", "steps", *OPTIONS}
    ):
        return None
    return torch.empty, ((arguments["steps"],),), {name: arguments[name] for name in OPTIONS & arguments.keys()}


@rewrites(torch._C._nn.one_hot, always=True)
def one_hot(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `one_hot(x, n)` as an empty tensor with `n` integers for each item of `x`, for its metadata."""
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes")
    if not isinstance(classes, torch.SymInt) or args[0].dtype is not torch.int64 or not classes > 0:
        return None
    return torch.Tensor.new_empty, (args[0], (*args[0].shape, classes)), {}


def triangle(reference: Callable[..., Any]) -> Callable[[Sequence[Any], Mapping[str, Any]], Call]:
    """Return a rewrite that computes the indices of a triangle with PyTorch's Python reference."""
    return lambda args, kwargs: (reference, args, kwargs)


rewrites(torch.tril_indices, always=True)(triangle(tril_indices))
rewrites(torch.triu_indices, always=True)(triangle(triu_indices))


# ---- functions whose C++ code reads values ------------------------------------------------------------------


@rewrites(*RECURRENT, always=True)
def recurrent_network(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite a recurrent network of a packed sequence as a call that raises the error of fakes for unknown values.

    The C++ code reads the batch sizes in `args[1]`. If their number is constant, PyTorch raises an error for fakes; if
    their number is symbolic, PyTorch reads a null pointer.
    """
    batch_sizes = kwargs.get("batch_sizes", args[1] if len(args) > 1 else None)
    return (require_values, (), {}) if isinstance(batch_sizes, torch.Tensor) else None


def require_values() -> Any:
    """Raise PyTorch's error for an operation that reads values of tensors without data."""
    raise DataDependentOutputException(torch.ops.aten.gru.data)
