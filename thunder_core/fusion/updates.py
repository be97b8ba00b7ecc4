"""Updates: operations that write a new value over a tensor, element by element, as bound symbols of a region can."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from thunder_core.analysis.aliasing import AliasSets, tensors_written
from thunder_core.capture.writes import OUT, without_write
from thunder_core.ir.proxy import TensorProxy, environment_of
from thunder_core.ir.sizes import comparison_keys, generic_hint_of
from thunder_core.ir.symbol import BoundSymbol

# Element by element too, whatever their tags say.
WHOLE = frozenset({"aten::copy", "aten::fill", "aten::zero", "aten::masked_fill"})
OTHERWISE = (torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded)


def is_update(bsym: BoundSymbol) -> bool:
    """Whether all that a bound symbol does to memory is to update tensors that it is given, as its operations say."""
    operations = bsym.operations
    written = {proxy.name for operation in operations for proxy in tensors_written(operation)}
    if not operations or bsym.ordered or written != set(bsym.mutates):
        return False
    return all(result_of(one) is not None for one in operations if any(tensors_written(one)))


def result_of(operation: BoundSymbol) -> TensorProxy | None:
    """The tensor, new or written over, of which an aten operation makes each element of such elements."""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or any(tag in target.tags for tag in OTHERWISE):
        return None
    plain = without_write(target) if target._schema.is_mutable else target
    if plain is None or not (torch.Tag.pointwise in plain.tags or plain._schema.name in WHOLE):
        return None
    made = next(tensors_written(operation)) if target._schema.is_mutable else operation.output
    if not isinstance(made, TensorProxy) or (target._schema.is_mutable and not is_plain(made)):
        return None
    return made if OUT not in operation.kwargs or _keeps_shape(operation, made) else None


def _keeps_shape(operation: BoundSymbol, made: TensorProxy) -> bool:
    """Whether what is given as `out` has the shape of the result already; else PyTorch would give it that."""
    given = [value for value in operation.args if isinstance(value, TensorProxy)]
    if environment_of((*given, made)) is not None:  # broadcasting symbolic shapes would add constraints
        shapes = {comparison_keys(proxy.shape) for proxy in given if proxy.shape}
        return shapes == {comparison_keys(made.shape)}
    shape = torch.broadcast_shapes(*(proxy.shape for proxy in given)) if given else None  # type: ignore[no-untyped-call]
    return shape is not None and tuple(shape) == made.shape


def is_plain(value: object) -> bool:
    """Whether each element of a tensor lies, as it is, at a place of its own in memory, whatever symbolic sizes are."""
    if not isinstance(value, TensorProxy) or not value.is_resolved or len(value.stride) != len(value.shape):
        return False
    end: Any = 1
    sizes = [one for one in zip(value.stride, value.shape, strict=True) if not statically_known_true(one[1] <= 1)]
    for stride, size in sorted(sizes, key=lambda one: (generic_hint_of(one[0]), generic_hint_of(one[1]))):
        if not statically_known_true(stride >= end):
            return False
        end = stride * (size - 1) + end
    return True


def stands_apart(
    bsyms: Sequence[BoundSymbol], read: Collection[str], aliasing: AliasSets, written: Collection[str]
) -> bool:
    """Whether bound symbols, as a region, share no memory that is written to with more than one name outside of them.

    `read` are the names that they make and others read; `written` has the representatives of the alias sets that
    are written to anywhere. What the bound symbols themselves write to, they know by one name from then on.
    """
    operations = [operation for bsym in bsyms for operation in bsym.operations]
    made = {proxy.name for operation in operations for proxy in operation.defines}
    updated: dict[str, str] = {}
    outside: dict[str, set[str]] = {}
    for operation in operations:
        updated = {aliasing.representative(proxy.name): proxy.name for proxy in tensors_written(operation)} | updated
        for proxy in (*operation.inputs, *operation.outputs):
            head = aliasing.representative(proxy.name)
            if updated.get(head, proxy.name) != proxy.name:
                return False
            if proxy.name not in made or proxy.name in read:
                outside.setdefault(head, set()).add(proxy.name)
    return not any(
        names - {updated[head]} if head in updated else head in written and len(names) > 1 and names & made
        for head, names in outside.items()
    )
