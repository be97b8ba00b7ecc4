"""From PyTorch's functions to symbols: their printed names, and what kind of thing calling them is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.overrides import get_testing_overrides, resolve_name

from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.tree import leaves

ORDERED_NAMES = frozenset(
    {
        "torch._C._set_grad_enabled",
        "torch.manual_seed",
        "torch.Tensor.requires_grad_",
        "torch.Tensor.retain_grad",
        "torch.Tensor.register_hook",
        "torch.Tensor.register_post_accumulate_grad_hook",
    }
)


VARIABLE_FUNCTIONS = "_VariableFunctionsClass"  # what `torch` has of functions such as `torch._foreach_add`
VALUE_READERS = frozenset(
    {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.data_ptr, torch.Tensor.__dlpack__}
)


STATE_NAMES = (
    "grad_fn",
    "is_leaf",
    "requires_grad",
    "retains_grad",
    "output_nr",
    "_version",
    "_base",
    "_backward_hooks",
)
# What tells of a tensor's past: of two tensors with the same metadata, each has its own.
HISTORY = frozenset({*(getattr(torch.Tensor, name).__get__ for name in STATE_NAMES), torch.Tensor._is_view})


@cache
def symbol_of(function: Callable[..., Any]) -> Symbol:
    """The symbol of a torch function, method, property accessor or aten operator."""
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return Symbol(f"torch.ops.{function}", function)
    name = resolve_name(function) or f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    return Symbol(name.replace(f"{VARIABLE_FUNCTIONS}.", ""), function)


@cache
def is_ordered(symbol: Symbol) -> bool:
    """Whether a call changes a state of the process or of a tensor that no operator's schema shows."""
    return symbol.name in ORDERED_NAMES or symbol.short_name in ("__set__", "__delete__")


@cache
def _randomness(operator: torch._ops.OpOverload) -> tuple[bool, int | None]:
    """Whether the operator may draw random numbers, and the position of its dropout probability if it has one."""
    names = [argument.name for argument in operator._schema.arguments]
    return torch.Tag.nondeterministic_seeded in operator.tags, names.index(
        "dropout_p"
    ) if "dropout_p" in names else None


def is_random(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws random numbers; attention without dropout does not, though it might."""
    seeded, position = _randomness(operator)
    if not seeded or position is None:
        return seeded
    return bool(args[position] if position < len(args) else kwargs.get("dropout_p", 0.0))


@cache
def written_arguments(operator: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """(position, name) of each argument that the operator writes to, by its schema."""
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def as_line(part: BoundSymbol, whole: BoundSymbol) -> BoundSymbol:
    """An aten operation of a line as a line of its own."""
    target, args, kwargs = part.symbol.target, part.args, part.kwargs
    if not isinstance(target, torch._ops.OpOverload):
        return replace(part, source=whole.source, module=whole.module)
    written = [args[at] if at < len(args) else kwargs.get(name) for at, name in written_arguments(target)]
    return replace(
        part,
        source=whole.source,
        module=whole.module,
        mutates=tuple(leaf.name for leaf in leaves(written) if isinstance(leaf, Proxy)),
        ordered=is_random(target, args, kwargs),
    )


@cache
def operations() -> frozenset[Callable[..., Any]]:
    """Every Python-level function of PyTorch that a torch function mode sees as one operation."""
    return frozenset(function for function in get_testing_overrides() if hasattr(function, "__code__"))
