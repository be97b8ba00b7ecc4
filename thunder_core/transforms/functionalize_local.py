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
from thunder_core.capture.symbols import out_of_place, symbol_of
from thunder_core.ir.proxy import Proxy, TensorProxy, tensor_proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves

COPY, EXPAND, TO_COPY = torch.ops.aten.copy_.default, torch.ops.aten.expand.default, torch.ops.aten._to_copy.default


def functionalize_local(lines: Sequence[BoundSymbol], names: Iterator[str]) -> list[BoundSymbol]:
    """The same lines without writes to what they make, as far as each write is one operation on a whole tensor.

    A tensor that another one may be a view of at that point is written to as before.
    """
    parts = [part for line in lines for part in _written_apart(line)]
    versions = _writes(parts, names)
    last = {write.output.name: place for place, (write, *_) in versions.items()}
    now: dict[str, Proxy] = {}
    made: list[BoundSymbol] = []
    for place, line in enumerate(parts):
        if place not in versions:
            first = {p.name: p.named(next(names)) for p in line.tensors if p.name in last}
            made.append(line.renamed(now | first))
            now |= first
            continue
        name = line.mutates[0]
        *before, write = (part.renamed(now) for part in reversed(versions[place]))
        now[name] = line.output if last[name] == place else line.output.named(next(names))
        made += [*before, replace(write, output=now[name])]
    return made


def _writes(lines: Sequence[BoundSymbol], names: Iterator[str]) -> dict[int, tuple[BoundSymbol, ...]]:
    """By the places of writes the operations that make a new tensor instead, the one that does so first.

    All writes to a tensor are there, or none.
    """
    known = AliasSets()
    made: set[str] = set()
    readable: set[str] = set()
    found: dict[int, tuple[BoundSymbol, ...]] = {}
    shared: set[str] = set()
    for place, line in enumerate(lines):
        for name in line.mutates:
            write = _functional(line, names) if len(line.mutates) == 1 else None
            if name in made and write is not None and not known.members(name) & readable - {name}:
                found[place] = write
            else:
                shared.add(name)
        known.add(line)
        readable |= {proxy.name for proxy in (*line.inputs, *line.outputs)}
        made |= {proxy.name for proxy in line.defines}
    return {place: write for place, write in found.items() if lines[place].mutates[0] not in shared}


def _written_apart(line: BoundSymbol) -> Sequence[BoundSymbol]:
    """A line that is one write, as that operation."""
    if not line.mutates or len(line.subsymbols) != 1 or line.ordered:
        return (line,)
    return (replace(line.subsymbols[0], mutates=line.mutates, source=line.source, module=line.module),)


def _functional(line: BoundSymbol, names: Iterator[str]) -> tuple[BoundSymbol, ...] | None:
    """A write as what makes a new tensor of the same metadata, the operation that does so first; None if none does."""
    target, output = line.symbol.target, line.output
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(output, TensorProxy):
        return None
    if output.name not in line.mutates:
        return None
    if target is COPY:
        return _copied(line, output, names)
    other = out_of_place(target)
    if other is None:
        return None
    write = replace(line, symbol=symbol_of(other), mutates=(), subsymbols=())
    return (write,) if _makes(other, write, output) else None


def _copied(line: BoundSymbol, output: TensorProxy, names: Iterator[str]) -> tuple[BoundSymbol, ...] | None:
    """`copy_` as operations that have derivatives: what is copied is expanded and converted."""
    source = line.args[1]
    dense = torch.empty(output.shape, device="meta").stride() == output.stride
    if not dense or not isinstance(source, TensorProxy) or source.device != output.device:
        return None
    with new_mode():
        wide = tensor_proxy(next(names), empty(source).expand(output.shape))
    plain = replace(line, mutates=(), subsymbols=(), kwargs={})
    expand = replace(plain, symbol=symbol_of(EXPAND), args=(source, list(output.shape)), output=wide)
    options = {"dtype": output.dtype, "memory_format": torch.contiguous_format}
    return replace(plain, symbol=symbol_of(TO_COPY), args=(wide,), kwargs=options), expand


def _makes(function: Any, line: BoundSymbol, output: TensorProxy) -> bool:
    """Whether an operation makes a tensor of this metadata of what a line is given."""
    given = (line.args, dict(line.kwargs))
    if any(isinstance(leaf, Proxy) and not isinstance(leaf, TensorProxy) for leaf in leaves(given)):
        return False
    try:
        with torch.no_grad(), new_mode():
            args, kwargs = replace_leaves(given, lambda leaf: empty(leaf) if isinstance(leaf, TensorProxy) else leaf)
            found = function(*args, **kwargs)
    except Exception:  # whatever it says, the write stays
        return False
    return isinstance(found, torch.Tensor) and (tuple(found.shape), found.stride(), found.dtype) == (
        output.shape,
        output.stride,
        output.dtype,
    )
