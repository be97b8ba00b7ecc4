"""Writes: the arguments that a call of an operator writes to, and equivalent operators without writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

SEEDED = torch.Tag.nondeterministic_seeded
OUT = "out"  # the keyword for a tensor that receives the result

# Operators that write to running statistics without declaring it in their schemas: always, or only in training.
STATISTICS = ("running_mean", "running_var")
UPDATES_STATISTICS: dict[str, str | None] = {
    "aten::native_batch_norm": "training",
    "aten::cudnn_batch_norm": "training",
    "aten::miopen_batch_norm": "training",
    "aten::batch_norm_gather_stats": None,
    "aten::batch_norm_gather_stats_with_counts": None,
    "aten::batch_norm_update_stats": None,
}

# Operators whose kernels write to lists of tensors without changing their versions.
UNVERSIONED = ("aten::_fused_", "aten::_amp_")


@cache
def written_arguments(operator: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Return (position, name) of each argument that the operator writes to, by its schema."""
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written_values(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments that a call of the operator writes to."""
    for position, name in written_arguments(operator):
        yield args[position] if position < len(args) else kwargs.get(name)
    if operator._schema.name in UPDATES_STATISTICS:
        names = (argument.name for argument in operator._schema.arguments)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        training = UPDATES_STATISTICS[operator._schema.name]
        if training is None or arguments.get(training):
            yield from (arguments.get(name) for name in STATISTICS)


@cache
def versioned_lists(operator: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Return (position, name) of each list of tensors whose versions the operator increases.

    Meta functions write nothing, so they do not increase the versions. (For single tensors, PyTorch increases the
    versions elsewhere.)
    """
    if operator._schema.name.startswith(UNVERSIONED):
        return ()
    arguments = operator._schema.arguments
    return tuple(pair for pair in written_arguments(operator) if str(arguments[pair[0]].type) == "List[Tensor]")


def updates_statistics(target: object) -> bool:
    """Whether a target is an operator that may write to running statistics without declaring it."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in UPDATES_STATISTICS


@cache
def is_reshaping(operator: torch._ops.OpOverload) -> bool:
    """Whether an operator changes a tensor's metadata in place."""
    return torch.Tag.inplace_view in operator.tags


@cache
def has_out_argument(operator: torch._ops.OpOverload) -> bool:
    """Whether an operator writes its results to given tensors (`out=`), which get the results' shapes."""
    return any(argument.is_out for argument in operator._schema.arguments)


def may_write(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call writes to its arguments, judging by PyTorch's naming conventions."""
    name = getattr(function, "__name__", "")
    return "out" in kwargs or bool(kwargs.get("inplace")) or name.startswith("__i") or name.rstrip("_") + "_" == name


@cache
def out_of_place(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the operator that returns a new tensor instead of overwriting its first operand (`mul_`), or None."""
    name = target._schema.name.removeprefix("aten::")
    if not name.endswith("_") or name.endswith("__"):
        return None
    return _overload_like(name[:-1], target._overloadname, _named_types(target._schema))


@cache
def without_write(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the operator that computes the same without writing, if the target writes its result to one tensor.

    That tensor is the first operand (`mul_`), or is passed as `out`.
    """
    schema = target._schema
    namespace, _, name = schema.name.partition("::")
    written = [index for index, argument in enumerate(schema.arguments) if argument.alias_info is not None]
    if namespace != "aten" or len(written) != 1:
        return None
    if written == [0] and (functional := out_of_place(target)) is not None:
        return functional
    if written == [len(schema.arguments) - 1] and schema.arguments[-1].name == OUT:
        return _overload_like(name, target._overloadname, _named_types(schema)[:-1])
    return None


def _overload_like(name: str, first: str, words: list[tuple[str, str]]) -> torch._ops.OpOverload | None:
    """Return the overload that takes such arguments: the overload with the name `first`, or another one.

    `pow_.Scalar` is `pow.Tensor_Scalar`. Random operators have other derivatives under other names.
    """
    packet = getattr(torch.ops.aten, name, None)
    overloads = packet.overloads() if packet is not None else ()
    names = sorted(overloads, key=lambda overload: overload != (first or "default"))
    every = [getattr(packet, overload) for overload in names]
    fitting = [operator for operator in every if _named_types(operator._schema) == words]
    return next((each for each in fitting if each._overloadname == first or SEEDED not in each.tags), None)


def _named_types(schema: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in schema.arguments]
