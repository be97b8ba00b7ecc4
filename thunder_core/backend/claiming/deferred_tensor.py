"""Deferred tensors: a float64 version of a weight that takes memory only while an operation reads it.

A product with a large deferred weight is computed for some columns at a time, and a gather takes rows before it
converts them. No such weight is converted as a whole: the embedding of 100,000 tokens, for example, is as large as many
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch
from torch.utils import _pytree

from thunder_core.tracing.capture.torch_facts.writes import written_values

MIN_DEFERRED = 1 << 20  # bytes; smaller tensors are converted at once, if they have at most `SMALL_BYTES` together
SMALL_BYTES = 16 << 20  # the total size of the tensors that are converted at once
PART_BYTES = 32 << 20  # bytes of a converted weight that a product reads at once
PRODUCTS = {torch.ops.aten.mm.default: 1, torch.ops.aten.addmm.default: 2}  # the index of the right factor
GATHERS = frozenset({torch.ops.aten.embedding.default, torch.ops.aten.index_select.default})
PLAIN_TENSOR_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
Compute = Callable[[torch.Tensor], torch.Tensor]
Key = TypeVar("Key", bound=Hashable)


class WriteToDeferred(RuntimeError):
    """Raised if an operation writes to a deferred tensor."""


class DeferredTensor(torch.Tensor):
    """A tensor whose values an elementwise function computes from a source, again for each operation that reads them.

    A view of a deferred tensor is deferred too. An operation that writes to a deferred tensor raises `WriteToDeferred`.
    """

    source: torch.Tensor
    compute: Compute
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, source: torch.Tensor, compute: Compute) -> DeferredTensor:
        """Return a tensor without data that has the metadata of the function's result."""
        result = compute(torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta"))
        deferred: DeferredTensor = torch.Tensor._make_wrapper_subclass(
            cls, result.shape, strides=result.stride(), dtype=result.dtype, device=source.device
        )
        deferred.source, deferred.compute = source.detach(), compute
        return deferred

    def values(self) -> torch.Tensor:
        """Return the values in new memory."""
        return self.compute(self.source)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call an operation with the values of deferred tensors, or return a view that is deferred too."""
        kwargs = kwargs or {}
        if is_view_of_first(func) and isinstance(args[0], cls):
            base = args[0]
            views = func(base.source, *args[1:], **kwargs)
            # A view of another dtype reinterprets bytes, so `compute` does not apply to the view.
            if all(view.dtype == base.source.dtype for view in _pytree.tree_leaves(views)):
                return _pytree.tree_map_only(torch.Tensor, lambda view: DeferredTensor(view, base.compute), views)
        if any(isinstance(leaf, cls) for leaf in _pytree.tree_leaves([*written_values(func, args, kwargs)])):
            raise WriteToDeferred(f"{func} writes to a tensor that is deferred")
        if func in GATHERS and isinstance(args[0], cls):
            return args[0].compute(func(args[0].source, *args[1:], **kwargs))
        if func in PRODUCTS and isinstance(weight := args[PRODUCTS[func]], cls) and weight.nbytes > PART_BYTES:
            return product_by_columns(func, args, kwargs, weight)
        args, kwargs = _pytree.tree_map_only(cls, cls.values, (args, kwargs))
        return func(*args, **kwargs)


def product_by_columns(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], weight: DeferredTensor
) -> torch.Tensor:
    """Return the product with a weight and the added bias, converting some columns of the weight at a time."""
    index = PRODUCTS[func]
    rows, columns = weight.shape
    width = max(1, PART_BYTES // (rows * weight.itemsize))
    result = torch.empty((args[index - 1].shape[0], columns), dtype=weight.dtype, device=weight.device)
    for start in range(0, columns, width):
        end = min(start + width, columns)
        added = [bias[..., start:end] if bias.shape[-1:] == (columns,) else bias for bias in args[: index - 1]]
        result[:, start:end] = func(*added, args[index - 1], weight[:, start:end], *args[index + 1 :], **kwargs)
    return result


def bytes_read_at_once(weight: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the bytes of a converted weight that are in memory at once while an operation reads the weight.

    A product with a matrix converts some columns at a time.
    """
    size = weight.numel() * dtype.itemsize
    return min(size, PART_BYTES) if weight.ndim == 2 else size


def has_same_values(left: object, right: object) -> bool:
    """Whether two tensors are deferred with the same computation from the same memory, so that they must be equal."""
    if not (isinstance(left, DeferredTensor) and isinstance(right, DeferredTensor)):
        return False
    memories = [(tensor.source.data_ptr(), tensor.source.shape, tensor.source.stride()) for tensor in (left, right)]
    return left.compute is right.compute and left.dtype == right.dtype and memories[0] == memories[1]


def is_view_of_first(func: Any) -> bool:
    """Whether all results of an operator are views of its first argument, which it does not write to."""
    schema = func._schema
    aliases = [argument for argument in schema.arguments if argument.alias_info is not None]
    return (
        not schema.is_mutable
        and bool(schema.returns)
        and len(aliases) == 1
        and aliases[0] is not None
        and schema.arguments[0].alias_info is not None
        and all(result.alias_info is not None for result in schema.returns)
    )


def small_tensors(sizes: Mapping[Key, int]) -> frozenset[Key]:
    """Return the keys of the tensors that may be copied at once, from the bytes of each tensor.

    These are the smallest tensors, each below `MIN_DEFERRED` bytes and all together at most `SMALL_BYTES`: a model may
    have hundreds of small weights.
    """
    small, total = set(), 0
    for key, size in sorted(sizes.items(), key=lambda item: item[1]):
        total += size
        if size >= MIN_DEFERRED or total > SMALL_BYTES:
            break
        small.add(key)
    return frozenset(small)


def defer(value: Any, compute: Compute, *, at_once: bool | None = None) -> Any:
    """Return the result of an elementwise function: computed now or, for a large tensor, at each operation that reads
    it.

    `at_once` decides whether a tensor that can be deferred is computed now. By default, a tensor below `MIN_DEFERRED`
    bytes is.
    """
    is_deferrable = can_be_deferred(value) and value.is_floating_point()
    if at_once is None:
        at_once = is_deferrable and value.nbytes < MIN_DEFERRED
    return DeferredTensor(value, compute) if is_deferrable and not at_once else compute(value)


def can_be_deferred(value: Any) -> bool:
    """Whether a value is a strided tensor of one of PyTorch's own classes."""
    return type(value) in PLAIN_TENSOR_CLASSES and value.layout is torch.strided and not value.is_quantized


def defer_all(values: Mapping[str, Any], compute: Compute) -> dict[str, Any]:
    """Return the results of an elementwise function for named values; all but the small tensors are deferred."""
    small = small_tensors({name: value.nbytes for name, value in values.items() if isinstance(value, torch.Tensor)})
    return {name: defer(value, compute, at_once=name in small) for name, value in values.items()}
