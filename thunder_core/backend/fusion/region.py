"""Regions: consecutive bound symbols as functions of their own, in names that equal ones have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy
import torch

from thunder_core.tracing.analysis.aliasing import tensors_written
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, symbols_in
from thunder_core.tracing.ir.sizes import text_of
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True, eq=False)
class Region:
    """A function of tensors, as aten operations in canonical names: inputs `x0`, `x1`, ..., values `v0`, `v1`, ...

    Behind the tensors it is given floats, the `numbers` `f0`, `f1`, ..., and behind these its `symbols`: integers of
    which the symbolic sizes of its tensors, and those that operations are given, are expressions. An operation may
    write to its first operand, an input or a value. Two sequences that do the same to tensors of the same metadata, up
    to the names of symbols, give regions with the same `digest`.
    """

    inputs: tuple[TensorProxy, ...]
    operations: tuple[BoundSymbol, ...]
    outputs: tuple[TensorProxy, ...] = ()
    numbers: tuple[Proxy, ...] = ()
    symbols: tuple[NumberProxy, ...] = ()

    @cached_property
    def writes(self) -> tuple[TensorProxy, ...]:
        """The inputs that it writes to, each as often as it does: by so much their versions go up."""
        input_names = {proxy.name for proxy in self.inputs}
        return tuple(proxy for one in self.operations for proxy in tensors_written(one) if proxy.name in input_names)

    @cached_property
    def body(self) -> str:
        """A text of what the region computes: operations, constants, and the metadata of its tensors."""
        spelling = _Spelling.of(self.symbols)
        lines = [*spelling.kinds, *map(spelling.described, self.inputs)]
        for bsym in self.operations:
            values = " ".join(spelling.described(leaf) for leaf in bsym.defines if isinstance(leaf, TensorProxy))
            args, kwargs = spelling.spelled(bsym.args), spelling.spelled(dict(bsym.kwargs))
            lines.append(f"{bsym.symbol.name} {args} {kwargs} -> {values}")
        return "\n".join(lines)

    @cached_property
    def text(self) -> str:
        """A text of all that decides what the region does."""
        return f"{self.body}\nreturn {' '.join(proxy.name for proxy in self.outputs)}"

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class RegionOccurrence:
    """A region where it stands in a computation: its bound symbols, and its tensors in the names of the trace.

    `defined` has every tensor that a bound symbol defines, by the canonical name.
    """

    region: Region
    bsyms: tuple[BoundSymbol, ...]
    inputs: tuple[TensorProxy, ...]
    defined: Mapping[str, TensorProxy]
    numbers: tuple[Proxy, ...] = ()

    def returning(self, names: Collection[str]) -> RegionOccurrence:
        """The occurrence of a region that returns the tensors of these names, in the order of their definitions."""
        metadata = {proxy.name: proxy for one in self.region.operations for proxy in one.tensors}
        outputs = tuple(metadata[name] for name in self.defined if name in names)
        return replace(self, region=replace(self.region, outputs=outputs))

    @property
    def arguments(self) -> tuple[Proxy, ...]:
        """The tensors, numbers and symbols that the region is given, in the names of the trace."""
        return (*self.inputs, *self.numbers, *self.region.symbols)

    @property
    def outputs(self) -> tuple[TensorProxy, ...]:
        """The tensors that the region returns, in the names of the trace."""
        return tuple(self.defined[proxy.name] for proxy in self.region.outputs)

    @property
    def written(self) -> tuple[str, ...]:
        """The inputs that the region writes to, in the names of the trace."""
        names = dict(zip((proxy.name for proxy in self.region.inputs), self.inputs, strict=True))
        return tuple(dict.fromkeys(names[proxy.name].name for proxy in self.region.writes))


def region_occurrence(bsyms: Sequence[BoundSymbol]) -> RegionOccurrence:
    """The region that these bound symbols are; it returns nothing yet."""
    operations = [operation for bsym in bsyms for operation in bsym.operations]
    defined: set[str] = set()
    inputs_by_name: dict[str, Proxy] = {}
    for operation in operations:
        for proxy in operation.inputs:
            if proxy.name not in defined and not isinstance(proxy, NumberProxy):
                inputs_by_name.setdefault(proxy.name, proxy)
        defined.update(proxy.name for proxy in operation.defines)
    inputs = tuple(_tensors(inputs_by_name.values()))
    numbers = tuple(proxy for proxy in inputs_by_name.values() if not isinstance(proxy, TensorProxy))
    names = _canonical_names(inputs, numbers, operations)
    outputs = {names[proxy.name].name: proxy for bsym in bsyms for proxy in bsym.tensors}
    region = Region(
        tuple(_tensors(names[proxy.name] for proxy in inputs)),
        tuple(_renamed(operations, names)),
        numbers=tuple(names[proxy.name] for proxy in numbers),
        symbols=symbols_in([*inputs, *(p for one in operations for p in (*one.inputs, *one.defines))]),
    )
    return RegionOccurrence(region, tuple(bsyms), inputs, outputs, numbers)


def _canonical_names(
    inputs: Sequence[TensorProxy], numbers: Sequence[Proxy], operations: Iterable[BoundSymbol]
) -> dict[str, Proxy]:
    """For each name of the trace the proxy of its place in the region."""
    names: dict[str, Proxy] = {proxy.name: proxy.named(f"x{place}") for place, proxy in enumerate(inputs)}
    names |= {proxy.name: Proxy(f"f{place}") for place, proxy in enumerate(numbers)}
    input_count = len(names)
    for operation in operations:
        for proxy in operation.defines:
            new = f"v{len(names) - input_count}"
            names[proxy.name] = proxy.named(new) if isinstance(proxy, TensorProxy) else replace(proxy, name=new)
    return names


def _renamed(operations: Iterable[BoundSymbol], names: Mapping[str, Proxy]) -> Iterator[BoundSymbol]:
    for operation in operations:
        plain = operation.renamed(names, at=(None, ""))
        yield replace(plain, subsymbols=(), executor="")


@dataclass(frozen=True)
class _Spelling:
    """Texts in which the symbols of sizes have the names of their places, `s0`, `s1`, ...; `names` are those.

    `kinds` has a text for each symbol that says whether it is a size or any integer, or what it was found to be.
    """

    names: Mapping[sympy.Basic, sympy.Symbol]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, symbols: Sequence[NumberProxy]) -> _Spelling:
        """The spelling with names for these symbols, which are as positive as they are."""
        names: dict[sympy.Basic, sympy.Symbol] = {}
        kinds = []
        for place, known in enumerate(proxy.value.node.expr for proxy in symbols):
            if known.is_Symbol and known not in names:
                names[known] = sympy.Symbol(f"s{place}", positive=known.is_positive, integer=True)
                kinds.append(f"s{place}: {'size' if known.is_positive else 'integer'}")
            else:
                kinds.append(f"s{place} = {text_of(known.xreplace(names))}")
        return cls(names, tuple(kinds))

    def spelled(self, tree: Any) -> str:
        """The text of nested arguments."""
        kind = type(tree)
        if isinstance(tree, NumberProxy):
            return self._size(tree.value)
        if isinstance(tree, Proxy):
            return tree.name
        if isinstance(tree, tuple | list):
            return f"{kind.__name__}({', '.join(map(self.spelled, tree))})"
        if isinstance(tree, dict):
            return f"dict({', '.join(f'{name}={self.spelled(value)}' for name, value in tree.items())})"
        return f"{kind.__name__}:{tree!r}"

    def described(self, proxy: TensorProxy) -> str:
        """The text of a tensor's name and metadata."""
        return f"{proxy.name}: {proxy.dtype} {self._sizes(proxy.shape)} {self._sizes(proxy.stride)} {proxy.device}"

    def _sizes(self, sizes: tuple[Any, ...]) -> str:
        return str(sizes) if not self.names else f"({', '.join(map(self._size, sizes))})"

    def _size(self, size: Any) -> str:
        return text_of(size.node.expr.xreplace(self.names)) if isinstance(size, torch.SymInt) else str(size)


def _tensors(proxies: Iterable[Proxy]) -> Iterator[TensorProxy]:
    yield from (proxy for proxy in proxies if isinstance(proxy, TensorProxy))
