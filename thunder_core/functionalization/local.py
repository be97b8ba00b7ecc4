"""Functionalization of writes to tensors that the same bound symbols made: each write makes a new tensor instead.

Of the tensors that stand for one that is written to, the last one has its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from thunder_core.analysis.aliasing import AliasSets
from thunder_core.capture.fake import empty, new_mode
from thunder_core.capture.sizes import number_of
from thunder_core.capture.symbols import symbol_of
from thunder_core.capture.writes import out_of_place
from thunder_core.ir.proxy import Proxy, TensorProxy, environment_of, tensor_proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves

COPY, EXPAND, TO_COPY = torch.ops.aten.copy_.default, torch.ops.aten.expand.default, torch.ops.aten._to_copy.default


def functionalize_local(bsyms: Sequence[BoundSymbol], names: Iterator[str]) -> list[BoundSymbol]:
    """The bound symbols without writes to what they make, as far as each write is one operation on a whole tensor.

    A tensor that another one may be a view of at that point is written to as before.
    """
    parts = [part for bsym in bsyms for part in _written_apart(bsym)]
    versions = _writes(parts, names)
    last = {write.output.name: place for place, (write, *_) in versions.items()}
    now: dict[str, Proxy] = {}
    made: list[BoundSymbol] = []
    for place, bsym in enumerate(parts):
        if place not in versions:
            first = {p.name: p.named(next(names)) for p in bsym.tensors if p.name in last}
            made.append(bsym.renamed(now | first))
            now |= first
            continue
        name = bsym.mutates[0]
        *before, write = (part.renamed(now) for part in reversed(versions[place]))
        now[name] = bsym.output if last[name] == place else bsym.output.named(next(names))
        made += [*before, replace(write, output=now[name])]
    return made


def _writes(bsyms: Sequence[BoundSymbol], names: Iterator[str]) -> dict[int, tuple[BoundSymbol, ...]]:
    """The operations that make a new tensor in place of each write, by the places of writes; the last one makes it.

    All writes to a tensor are there, or none.
    """
    aliasing = AliasSets()
    made: set[str] = set()
    readable: set[str] = set()
    found: dict[int, tuple[BoundSymbol, ...]] = {}
    shared: set[str] = set()
    for place, bsym in enumerate(bsyms):
        for name in bsym.mutates:
            write = _functional(bsym, names) if len(bsym.mutates) == 1 else None
            if name in made and write is not None and not aliasing.members(name) & readable - {name}:
                found[place] = write
            else:
                shared.add(name)
        aliasing.add(bsym)
        readable |= {proxy.name for proxy in (*bsym.inputs, *bsym.outputs)}
        made |= {proxy.name for proxy in bsym.defines}
    return {place: write for place, write in found.items() if bsyms[place].mutates[0] not in shared}


def _written_apart(bsym: BoundSymbol) -> Sequence[BoundSymbol]:
    """A bound symbol that is one write, as that operation."""
    if not bsym.mutates or len(bsym.subsymbols) != 1 or bsym.ordered:
        return (bsym,)
    return (replace(bsym.subsymbols[0], mutates=bsym.mutates, source=bsym.source, module=bsym.module),)


def _functional(bsym: BoundSymbol, names: Iterator[str]) -> tuple[BoundSymbol, ...] | None:
    """A write as what makes a new tensor of the same metadata, the operation that does so first; None if none does."""
    target, output = bsym.symbol.target, bsym.output
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(output, TensorProxy):
        return None
    if output.name not in bsym.mutates:
        return None
    if target is COPY:
        return _copied(bsym, output, names)
    other = out_of_place(target)
    if other is None:
        return None
    write = replace(bsym, symbol=symbol_of(other), mutates=(), subsymbols=())
    return (write,) if _makes(other, write, output) else None


def _copied(bsym: BoundSymbol, output: TensorProxy, names: Iterator[str]) -> tuple[BoundSymbol, ...] | None:
    """`copy_` as operations that have derivatives: what is copied is expanded and converted."""
    source = bsym.args[1]
    dense = torch.empty(output.shape, device="meta").stride() == output.stride
    if not dense or not isinstance(source, TensorProxy) or source.device != output.device:
        return None
    with new_mode(environment_of((source, output))):
        wide = tensor_proxy(next(names), empty(source).expand(output.shape))
    plain = replace(bsym, mutates=(), subsymbols=(), kwargs={})
    expand = replace(plain, symbol=symbol_of(EXPAND), args=(source, list(map(number_of, output.shape))), output=wide)
    options = {"dtype": output.dtype, "memory_format": torch.contiguous_format}
    return replace(plain, symbol=symbol_of(TO_COPY), args=(wide,), kwargs=options), expand


def _makes(function: Any, bsym: BoundSymbol, output: TensorProxy) -> bool:
    """Whether an operation makes a tensor of this metadata of what a bound symbol is given."""
    given = (bsym.args, dict(bsym.kwargs))
    if any(isinstance(leaf, Proxy) and not isinstance(leaf, TensorProxy) for leaf in leaves(given)):
        return False
    try:
        with torch.no_grad(), new_mode(environment_of((*bsym.inputs, output))):
            args, kwargs = replace_leaves(given, lambda leaf: empty(leaf) if isinstance(leaf, TensorProxy) else leaf)
            found = function(*args, **kwargs)
    except Exception:  # whatever it says, the write stays
        return False
    return isinstance(found, torch.Tensor) and (tuple(found.shape), found.stride(), found.dtype) == (
        output.shape,
        output.stride,
        output.dtype,
    )
