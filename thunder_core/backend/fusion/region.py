"""Regions: consecutive bound symbols as functions with canonical names, so that equal regions have equal text."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy
import torch

from thunder_core.tracing.analysis.aliasing import written_tensors
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, symbols_in
from thunder_core.tracing.ir.sizes import text_of
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True, eq=False)
class Region:
    """A function of tensors, as aten operations in canonical names: inputs `x0`, `x1`, ..., values `v0`, `v1`, ...

    After the tensors, the function takes floats, the `numbers` `f0`, `f1`, ..., and then its `symbols`: integers. The
    symbolic sizes of its tensors and operations are expressions of these integers. An operation may write to its first
    operand, which is an input or a computed value. Two regions have the same `digest` if they compute the same on
    tensors of the same metadata, up to the names of symbols.
    """

    inputs: tuple[TensorProxy, ...]
    operations: tuple[BoundSymbol, ...]
    outputs: tuple[TensorProxy, ...] = ()
    numbers: tuple[Proxy, ...] = ()
    symbols: tuple[NumberProxy, ...] = ()

    @property
    def device(self) -> torch.device:
        """The device of the region's tensors."""
        return next(iter((*self.inputs, *self.outputs))).device

    @cached_property
    def writes(self) -> tuple[TensorProxy, ...]:
        """The inputs that the region writes to, one entry for each write: each write increases the input's version."""
        input_names = {proxy.name for proxy in self.inputs}
        return tuple(
            proxy for operation in self.operations for proxy in written_tensors(operation) if proxy.name in input_names
        )

    @cached_property
    def body(self) -> str:
        """The text of the region's computation: operations, constants, and the metadata of its tensors."""
        spelling = _Spelling.of(self.symbols)
        lines = [*spelling.kinds, *map(spelling.describe, self.inputs)]
        for bsym in self.operations:
            values = " ".join(spelling.describe(leaf) for leaf in bsym.defines if isinstance(leaf, TensorProxy))
            args, kwargs = spelling.spell(bsym.args), spelling.spell(dict(bsym.kwargs))
            lines.append(f"{bsym.symbol.name} {args} {kwargs} -> {values}")
        return "\n".join(lines)

    @cached_property
    def text(self) -> str:
        """The text of everything that determines the region's behaviour."""
        return f"{self.body}\nreturn {' '.join(proxy.name for proxy in self.outputs)}"

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class RegionOccurrence:
    """A region's occurrence in a computation: its bound symbols, and its tensors in the names of the trace.

    `defined` has every tensor that a bound symbol defines, by canonical name.
    """

    region: Region
    bsyms: tuple[BoundSymbol, ...]
    inputs: tuple[TensorProxy, ...]
    defined: Mapping[str, TensorProxy]
    numbers: tuple[Proxy, ...] = ()

    def returning(self, names: Collection[str]) -> RegionOccurrence:
        """Return this occurrence with a region that returns the tensors of these canonical names, in order."""
        metadata = {proxy.name: proxy for operation in self.region.operations for proxy in operation.tensors}
        outputs = tuple(metadata[name] for name in self.defined if name in names)
        return replace(self, region=replace(self.region, outputs=outputs))

    @property
    def arguments(self) -> tuple[Proxy, ...]:
        """The tensors, numbers and symbols that the region takes, in the names of the trace."""
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
    """Return the occurrence of the region that these bound symbols form; the region has no outputs yet."""
    operations = [operation for bsym in bsyms for operation in bsym.operations]
    defined: set[str] = set()
    inputs_by_name: dict[str, Proxy] = {}
    for operation in operations:
        for proxy in operation.inputs:
            if proxy.name not in defined and not isinstance(proxy, NumberProxy):
                inputs_by_name.setdefault(proxy.name, proxy)
        defined.update(proxy.name for proxy in operation.defines)
    inputs = tuple(_tensors_among(inputs_by_name.values()))
    numbers = tuple(proxy for proxy in inputs_by_name.values() if not isinstance(proxy, TensorProxy))
    names = _canonical_names(inputs, numbers, operations)
    outputs = {names[proxy.name].name: proxy for bsym in bsyms for proxy in bsym.tensors}
    region = Region(
        tuple(_tensors_among(names[proxy.name] for proxy in inputs)),
        tuple(_rename(operations, names)),
        numbers=tuple(names[proxy.name] for proxy in numbers),
        symbols=symbols_in(
            [*inputs, *(p for operation in operations for p in (*operation.inputs, *operation.defines))]
        ),
    )
    return RegionOccurrence(region, tuple(bsyms), inputs, outputs, numbers)


def _canonical_names(
    inputs: Sequence[TensorProxy], numbers: Sequence[Proxy], operations: Iterable[BoundSymbol]
) -> dict[str, Proxy]:
    """Return, for each name of the trace, the proxy with its canonical name in the region."""
    names: dict[str, Proxy] = {proxy.name: proxy.with_name(f"x{index}") for index, proxy in enumerate(inputs)}
    names |= {proxy.name: Proxy(f"f{index}") for index, proxy in enumerate(numbers)}
    input_count = len(names)
    for operation in operations:
        for proxy in operation.defines:
            new = f"v{len(names) - input_count}"
            names[proxy.name] = proxy.with_name(new) if isinstance(proxy, TensorProxy) else replace(proxy, name=new)
    return names


def _rename(operations: Iterable[BoundSymbol], names: Mapping[str, Proxy]) -> Iterator[BoundSymbol]:
    for operation in operations:
        plain = operation.rename(names, at=(None, ""))
        yield replace(plain, subsymbols=(), executor="")


@dataclass(frozen=True)
class _Spelling:
    """Texts with canonical names `s0`, `s1`, ... for the symbols of sizes; `names` maps symbols to these names.

    `kinds` has a text for each symbol: `s0: size`, `s0: integer`, or the symbol's expression.
    """

    names: Mapping[sympy.Basic, sympy.Symbol]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, symbols: Sequence[NumberProxy]) -> _Spelling:
        """Return the spelling with canonical names for these symbols; positive symbols stay positive."""
        names: dict[sympy.Basic, sympy.Symbol] = {}
        kinds = []
        for index, expression in enumerate(proxy.value.node.expr for proxy in symbols):
            if expression.is_Symbol and expression not in names:
                names[expression] = sympy.Symbol(f"s{index}", positive=expression.is_positive, integer=True)
                kinds.append(f"s{index}: {'size' if expression.is_positive else 'integer'}")
            else:
                kinds.append(f"s{index} = {text_of(expression.xreplace(names))}")
        return cls(names, tuple(kinds))

    def spell(self, tree: object) -> str:
        """Return the text of nested arguments."""
        kind = type(tree)
        if isinstance(tree, NumberProxy):
            return self._size(tree.value)
        if isinstance(tree, Proxy):
            return tree.name
        if isinstance(tree, tuple | list):
            return f"{kind.__name__}({', '.join(map(self.spell, tree))})"
        if isinstance(tree, dict):
            return f"dict({', '.join(f'{name}={self.spell(value)}' for name, value in tree.items())})"
        return f"{kind.__name__}:{tree!r}"

    def describe(self, proxy: TensorProxy) -> str:
        """Return the text of a tensor's name and metadata."""
        return f"{proxy.name}: {proxy.dtype} {self._sizes(proxy.shape)} {self._sizes(proxy.stride)} {proxy.device}"

    def _sizes(self, sizes: tuple[Any, ...]) -> str:
        return str(sizes) if not self.names else f"({', '.join(map(self._size, sizes))})"

    def _size(self, size: object) -> str:
        return text_of(size.node.expr.xreplace(self.names)) if isinstance(size, torch.SymInt) else str(size)


def _tensors_among(proxies: Iterable[Proxy]) -> Iterator[TensorProxy]:
    yield from (proxy for proxy in proxies if isinstance(proxy, TensorProxy))
