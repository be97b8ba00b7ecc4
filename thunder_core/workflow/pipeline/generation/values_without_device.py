"""Compute the values of integers and booleans on the meta device, so that `generate` runs for a missing GPU.

`generate` of the transformers library reads values: whether all texts have ended, and the last tokens. A model on the
meta device has no data. The mode of this module therefore also computes integers and booleans on the CPU. A value that
depends on the weights, such as the next token, is unknown. In place of the next token, the mode gives a token that does
not end the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

aten = torch.ops.aten
META = torch.device("meta")
CPU = torch.device("cpu")
MAX_ELEMENTS = 1 << 22  # elements of a tensor whose values are computed
# The tags of operations that the meta device cannot compute: their result is a number, or their sizes need values.
NEEDS_VALUES_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
# Operations whose results are uninitialized memory.
WITHOUT_VALUES = frozenset(
    {
        *(aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted),
        *(aten.new_empty, aten.new_empty_strided),
    }
)


@contextmanager
def values_on_meta(unknown: int = 0) -> Iterator[None]:
    """Within the block, compute integers and booleans on the meta device; `unknown` replaces unknown values."""
    with ValuesOnMeta(unknown), TensorsFromNumbers():
        yield


def token_within_text(config: object) -> int:
    """Return the smallest token that does not end a text, according to a generation config, which may be None."""
    end = getattr(config, "eos_token_id", None)
    ends = {end} if isinstance(end, int) else {*(end or ())}
    return next(token for token in range(len(ends) + 1) if token not in ends)


class TensorsFromNumbers(TorchFunctionMode):
    """A mode in which `torch.tensor(..., device="meta")` copies a tensor from the CPU, so that the values are known."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch; create a tensor for the meta device on the CPU, and copy it."""
        kwargs = kwargs or {}
        if func is torch.tensor and torch.device(kwargs.get("device") or CPU) == META:
            return func(*args, **{**kwargs, "device": CPU}).to(META)
        return func(*args, **kwargs)


class ValuesOnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that keeps the values of integers and booleans on the meta device in tensors on the CPU."""

    def __init__(self, unknown: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unknown = unknown
        self._values: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation on the meta device, and on the values of its integers and booleans."""
        kwargs = kwargs or {}
        if not any(map(is_on_meta, tree_flatten((args, kwargs))[0])):
            return func(*args, **kwargs)
        if needs_values(func, args):
            return tree_map(self._to_meta, self._run_on_values(func, args, kwargs))
        if copies_to_cpu(func, args, kwargs):
            return self._run_on_values(func, args, kwargs)
        output = func(*args, **kwargs)
        results, written = tree_flatten(output)[0], written_tensors(func, args, kwargs)
        if any(map(has_values, (*results, *written))) and self._knows_any(args, kwargs):
            self._compute(func, args, kwargs, results, written)
        return output

    def _compute(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any], written: list[Any]
    ) -> None:
        """Compute the values of results and written arguments; values that the CPU cannot compute become unknown."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._mark_unknown(written)
        try:
            values = tree_flatten(self._run_on_values(func, args, kwargs))[0]
        except (NotImplementedError, RuntimeError, IndexError):  # no kernel on the CPU, or an unknown index
            return self._mark_unknown(written)
        for result, value in zip(results, values, strict=True):
            self._store_values(result, value)
        if func.overloadpacket in WITHOUT_VALUES:
            self._mark_unknown(results)
        return None

    def _mark_unknown(self, tensors: list[Any]) -> None:
        """Fill tensors and their views with the value for unknown elements."""
        for values in [self._values[tensor] for tensor in tensors if tensor in self._values]:
            values.fill_(self._unknown_value_of(values.dtype))

    def _unknown_value_of(self, dtype: torch.dtype) -> int:
        return False if dtype is torch.bool else self._unknown

    def _knows_any(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the values of an argument are known, or no argument is a tensor on the meta device."""
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        known_leaves = [leaf for leaf in leaves if not is_on_meta(leaf) or leaf in self._values]
        return bool(known_leaves) or not leaves

    def _run_on_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation on values."""
        leaves, structure = tree_flatten((args, kwargs))
        args, kwargs = tree_unflatten([self._value_of(leaf) for leaf in leaves], structure)
        return func(*args, **kwargs)

    def _value_of(self, leaf: object) -> Any:
        """Return the values of a tensor on the meta device, which may be the unknown value; other leaves unchanged."""
        if not is_on_meta(leaf):
            return leaf
        if not isinstance(leaf, torch.Tensor):
            return CPU
        if leaf in self._values:
            return self._values[leaf]
        values = torch.full((), self._unknown_value_of(leaf.dtype), dtype=leaf.dtype).expand(leaf.shape)
        if has_values(leaf):
            values = self._values[leaf] = values.clone()
        return values

    def _to_meta(self, values: object) -> Any:
        """Return a tensor on the meta device with these values; other results unchanged."""
        if not isinstance(values, torch.Tensor):
            return values
        result = torch.empty_like(values, device=META)
        self._store_values(result, values)
        return result

    def _store_values(self, result: object, values: object) -> None:
        if has_values(result):
            self._values[result] = values


def is_on_meta(leaf: object) -> bool:
    """Whether an argument is a tensor on the meta device, or names that device."""
    return (leaf.device if isinstance(leaf, torch.Tensor) else leaf) == META


def has_values(result: object) -> bool:
    """Whether the values of a tensor on the meta device are computed: few integers or booleans."""
    if not isinstance(result, torch.Tensor) or result.device != META:
        return False
    return not (result.is_floating_point() or result.is_complex()) and result.numel() <= MAX_ELEMENTS


def needs_values(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation needs values, so that the meta device cannot compute it. Indexing needs values of masks."""
    if func.overloadpacket is aten.index:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return func.overloadpacket is aten.is_nonzero or not NEEDS_VALUES_TAGS.isdisjoint(func.tags)


def written_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes to."""
    values_by_name = {
        **{argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)},
        **kwargs,
    }
    written = [argument for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write]
    return tree_flatten([values_by_name.get(argument.name) for argument in written])[0]


def copies_to_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation copies a tensor from the meta device to the CPU."""
    if func.overloadpacket is aten._to_copy:
        return kwargs.get("device") == CPU
    return func.overloadpacket is aten.copy_ and args[0].device == CPU
