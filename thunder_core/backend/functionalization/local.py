"""Functionalize writes to tensors that the same bound symbols create: out-of-place operations replace the writes.

A written tensor becomes a series of new tensors. The last new tensor has the name of the written tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from thunder_core.tracing.analysis.aliasing import AliasSets
from thunder_core.tracing.capture.fakes.fake import empty, new_mode
from thunder_core.tracing.capture.symbolic.shape_env import number_of
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.torch_facts.writes import out_of_place
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, environment_of, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves

COPY, EXPAND, TO_COPY = torch.ops.aten.copy_.default, torch.ops.aten.expand.default, torch.ops.aten._to_copy.default


def functionalize_local(bsyms: Sequence[BoundSymbol], names: Iterator[str]) -> list[BoundSymbol]:
    """Replace writes to tensors that the bound symbols create by out-of-place operations, and return the bound symbols.

    A write is kept if it is not a single operation on a whole tensor, or if the tensor has an alias at that time.
    `names` yields fresh names.
    """
    operations = [operation for bsym in bsyms for operation in _write_as_operation(bsym)]
    replacements = _replacements(operations, names)
    last_write = {write.output.name: index for index, (*_, write) in replacements.items()}
    current: dict[str, Proxy] = {}
    result: list[BoundSymbol] = []
    for index, bsym in enumerate(operations):
        if index not in replacements:
            first = {p.name: p.with_name(next(names)) for p in bsym.tensors if p.name in last_write}
            result.append(bsym.rename(current | first))
            current |= first
            continue
        name = bsym.mutates[0]
        *before, write = (operation.rename(current) for operation in replacements[index])
        current[name] = bsym.output if last_write[name] == index else bsym.output.with_name(next(names))
        result += [*before, replace(write, output=current[name])]
    return result


def _replacements(bsyms: Sequence[BoundSymbol], names: Iterator[str]) -> dict[int, tuple[BoundSymbol, ...]]:
    """Map the index of each write to the operations that replace it; the last operation makes the new tensor.

    All writes to a tensor are included, or none.
    """
    aliasing = AliasSets()
    defined: set[str] = set()
    readable: set[str] = set()
    replacements: dict[int, tuple[BoundSymbol, ...]] = {}
    shared: set[str] = set()
    for index, bsym in enumerate(bsyms):
        for name in bsym.mutates:
            operations = _out_of_place_operations(bsym, names) if len(bsym.mutates) == 1 else None
            if name in defined and operations is not None and not aliasing.members(name) & readable - {name}:
                replacements[index] = operations
            else:
                shared.add(name)
        aliasing.add(bsym)
        readable |= {proxy.name for proxy in (*bsym.inputs, *bsym.outputs)}
        defined |= {proxy.name for proxy in bsym.defines}
    return {index: replacement for index, replacement in replacements.items() if bsyms[index].mutates[0] not in shared}


def _write_as_operation(bsym: BoundSymbol) -> Sequence[BoundSymbol]:
    """Return the only operation of a bound symbol that writes to a tensor; return any other bound symbol unchanged."""
    if not bsym.mutates or len(bsym.subsymbols) != 1 or bsym.ordered:
        return (bsym,)
    return (replace(bsym.subsymbols[0], mutates=bsym.mutates, source=bsym.source, module=bsym.module),)


def _out_of_place_operations(bsym: BoundSymbol, names: Iterator[str]) -> tuple[BoundSymbol, ...] | None:
    """Return out-of-place operations that make a tensor with the metadata of a write's result; None if impossible."""
    target, output = bsym.symbol.target, bsym.output
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(output, TensorProxy):
        return None
    if output.name not in bsym.mutates:
        return None
    if target is COPY:
        return _copy_operations(bsym, output, names)
    functional = out_of_place(target)
    if functional is None:
        return None
    write = replace(bsym, symbol=symbol_of(functional), mutates=(), subsymbols=())
    return (write,) if _returns_metadata_of(functional, write, output) else None


def _copy_operations(bsym: BoundSymbol, output: TensorProxy, names: Iterator[str]) -> tuple[BoundSymbol, ...] | None:
    """Return differentiable operations for `copy_`: the source is expanded and then converted."""
    source = bsym.args[1]
    dense = torch.empty(output.shape, device="meta").stride() == output.stride
    if not dense or not isinstance(source, TensorProxy) or source.device != output.device:
        return None
    with new_mode(environment_of((source, output))):
        wide = tensor_proxy(next(names), empty(source).expand(output.shape))
    plain = replace(bsym, mutates=(), subsymbols=(), kwargs={})
    expand = replace(plain, symbol=symbol_of(EXPAND), args=(source, list(map(number_of, output.shape))), output=wide)
    options = {"dtype": output.dtype, "memory_format": torch.contiguous_format}
    return expand, replace(plain, symbol=symbol_of(TO_COPY), args=(wide,), kwargs=options)


def _returns_metadata_of(function: Any, bsym: BoundSymbol, output: TensorProxy) -> bool:
    """Whether a function, called like a bound symbol, makes a tensor with the metadata of `output`."""
    arguments = (bsym.args, dict(bsym.kwargs))
    if any(isinstance(leaf, Proxy) and not isinstance(leaf, TensorProxy) for leaf in leaves(arguments)):
        return False
    try:
        with torch.no_grad(), new_mode(environment_of((*bsym.inputs, output))):
            args, kwargs = replace_leaves(
                arguments, lambda leaf: empty(leaf) if isinstance(leaf, TensorProxy) else leaf
            )
            result = function(*args, **kwargs)
    except Exception:  # after any error, the write stays
        return False
    return isinstance(result, torch.Tensor) and (tuple(result.shape), result.stride(), result.dtype) == (
        output.shape,
        output.stride,
        output.dtype,
    )
