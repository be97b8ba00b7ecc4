"""Updates: operations that overwrite a tensor element by element, which regions may contain."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from thunder_core.tracing.analysis.aliasing import AliasSets, written_tensors
from thunder_core.tracing.capture.torch_facts.writes import OUT, without_write
from thunder_core.tracing.ir.proxy import TensorProxy, environment_of
from thunder_core.tracing.ir.sizes import comparison_keys, generic_hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol

# Operators that compute element by element, but lack the tag `pointwise`.
UNTAGGED_POINTWISE = frozenset({"aten::copy", "aten::fill", "aten::zero", "aten::masked_fill"})
TAGS_WITHOUT_UPDATES = (torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded)


def is_update(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol's only effect is to update its input tensors, according to its operations."""
    operations = bsym.operations
    written = {proxy.name for operation in operations for proxy in written_tensors(operation)}
    if not operations or bsym.ordered or written != set(bsym.mutates):
        return False
    return all(result_of(operation) is not None for operation in operations if any(written_tensors(operation)))


def result_of(operation: BoundSymbol) -> TensorProxy | None:
    """Return the tensor that an element-wise aten operation makes or overwrites; None for any other operation."""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or any(tag in target.tags for tag in TAGS_WITHOUT_UPDATES):
        return None
    plain = without_write(target) if target._schema.is_mutable else target
    if plain is None or not (torch.Tag.pointwise in plain.tags or plain._schema.name in UNTAGGED_POINTWISE):
        return None
    result = next(written_tensors(operation)) if target._schema.is_mutable else operation.output
    if not isinstance(result, TensorProxy) or (target._schema.is_mutable and not is_plain(result)):
        return None
    return result if OUT not in operation.kwargs or _keeps_shape(operation, result) else None


def _keeps_shape(operation: BoundSymbol, result: TensorProxy) -> bool:
    """Whether the `out` argument already has the shape of the result; else PyTorch would resize it."""
    tensors = [value for value in operation.args if isinstance(value, TensorProxy)]
    if environment_of((*tensors, result)) is not None:  # broadcasting symbolic shapes would add constraints
        shapes = {comparison_keys(proxy.shape) for proxy in tensors if proxy.shape}
        return shapes == {comparison_keys(result.shape)}
    shape = torch.broadcast_shapes(*(proxy.shape for proxy in tensors)) if tensors else None  # type: ignore[no-untyped-call]
    return shape is not None and tuple(shape) == result.shape


def is_plain(value: object) -> bool:
    """Whether no two elements of a tensor share memory, for all values of symbolic sizes."""
    if not isinstance(value, TensorProxy) or not value.is_resolved or len(value.stride) != len(value.shape):
        return False
    return has_distinct_addresses(value.shape, value.stride)


def has_distinct_addresses(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether all elements of a tensor have distinct addresses, for all symbolic sizes; False if unsure."""
    end: Any = 1
    sizes = [pair for pair in zip(strides, shape, strict=True) if not statically_known_true(pair[1] <= 1)]
    for stride, size in sorted(sizes, key=lambda pair: (generic_hint_of(pair[0]), generic_hint_of(pair[1]))):
        if not statically_known_true(stride >= end):
            return False
        end = stride * (size - 1) + end
    return True


def shares_written_storage_by_one_name(
    bsyms: Sequence[BoundSymbol], read: Collection[str], aliasing: AliasSets, written: Collection[str]
) -> bool:
    """Whether a region shares each written storage with the outside by at most one name.

    A storage that the region writes to must have one name in the region from its first write on, and no other name
    outside. If only bound symbols outside of the region write to a storage, the region must not define another name of
    the storage that is read outside. `read` are the names that the region defines and that are read outside. `written`
    are the representative names of all memory that the trace writes to.
    """
    operations = [operation for bsym in bsyms for operation in bsym.operations]
    written_names = _written_names(operations, aliasing)
    if written_names is None:
        return False
    defined = {proxy.name for operation in operations for proxy in operation.defines}
    outside: dict[str, set[str]] = {}
    for proxy in (proxy for operation in operations for proxy in (*operation.inputs, *operation.outputs)):
        if proxy.name not in defined or proxy.name in read:
            outside.setdefault(aliasing.representative(proxy.name), set()).add(proxy.name)
    for storage, names in outside.items():
        if storage in written_names and names != {written_names[storage]}:
            return False
        if storage not in written_names and storage in written and len(names) > 1 and names & defined:
            return False
    return True


def _written_names(operations: Iterable[BoundSymbol], aliasing: AliasSets) -> dict[str, str] | None:
    """Map each written storage to its only name from its first write on; None if a storage has several names."""
    names: dict[str, str] = {}
    for operation in operations:
        names = {aliasing.representative(proxy.name): proxy.name for proxy in written_tensors(operation)} | names
        for proxy in (*operation.inputs, *operation.outputs):
            if names.get(aliasing.representative(proxy.name), proxy.name) != proxy.name:
                return None
    return names
