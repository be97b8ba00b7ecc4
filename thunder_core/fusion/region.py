"""Regions: stretches of a computation as functions of their own, in names that equal stretches have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from thunder_core.analysis.aliasing import tensors_written
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol


@dataclass(frozen=True, eq=False)
class Region:
    """A function of tensors, as aten operations in canonical names: inputs `x0`, `x1`, ..., values `v0`, `v1`, ...

    Behind the tensors it is given floats, the `numbers` `n0`, `n1`, ... An operation may write to its first operand,
    an input or a value. Two stretches that do the same to tensors of the same metadata give regions with the same
    `digest`.
    """

    inputs: tuple[TensorProxy, ...]
    operations: tuple[BoundSymbol, ...]
    outputs: tuple[TensorProxy, ...] = ()
    numbers: tuple[Proxy, ...] = ()

    @cached_property
    def writes(self) -> tuple[TensorProxy, ...]:
        """The inputs that it writes to, each as often as it does: by so much their versions go up."""
        given = {proxy.name for proxy in self.inputs}
        return tuple(proxy for one in self.operations for proxy in tensors_written(one) if proxy.name in given)

    @cached_property
    def body(self) -> str:
        """A text of what the region computes: operations, constants, and the metadata of its tensors."""
        bsyms = [_described(proxy) for proxy in self.inputs]
        for bsym in self.operations:
            values = " ".join(_described(leaf) for leaf in bsym.defines if isinstance(leaf, TensorProxy))
            bsyms.append(f"{bsym.symbol.name} {_spelled(bsym.args)} {_spelled(dict(bsym.kwargs))} -> {values}")
        return "\n".join(bsyms)

    @cached_property
    def text(self) -> str:
        """A text of all that decides what the region does."""
        return f"{self.body}\nreturn {' '.join(proxy.name for proxy in self.outputs)}"

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Stretch:
    """A region where it stands in a computation: its bound symbols, and its tensors in the names of the trace.

    `made` has every tensor that a bound symbol makes, by the canonical name.
    """

    region: Region
    bsyms: tuple[BoundSymbol, ...]
    inputs: tuple[TensorProxy, ...]
    made: Mapping[str, TensorProxy]
    numbers: tuple[Proxy, ...] = ()

    def returning(self, names: Collection[str]) -> Stretch:
        """The stretch with these canonical names as what the region returns, in the order of their making."""
        metadata = {proxy.name: proxy for one in self.region.operations for proxy in one.tensors}
        outputs = tuple(metadata[name] for name in self.made if name in names)
        return replace(self, region=replace(self.region, outputs=outputs))

    @property
    def outputs(self) -> tuple[TensorProxy, ...]:
        """The tensors that the region returns, in the names of the trace."""
        return tuple(self.made[proxy.name] for proxy in self.region.outputs)

    @property
    def written(self) -> tuple[str, ...]:
        """The inputs that the region writes to, in the names of the trace."""
        names = dict(zip((proxy.name for proxy in self.region.inputs), self.inputs, strict=True))
        return tuple(dict.fromkeys(names[proxy.name].name for proxy in self.region.writes))


def stretch(bsyms: Sequence[BoundSymbol]) -> Stretch:
    """The region that these bound symbols are; it returns nothing yet."""
    operations = [operation for bsym in bsyms for operation in bsym.operations]
    defined: set[str] = set()
    given: dict[str, Proxy] = {}
    for operation in operations:
        for proxy in operation.inputs:
            if proxy.name not in defined:
                given.setdefault(proxy.name, proxy)
        defined.update(proxy.name for proxy in operation.defines)
    inputs = tuple(_tensors(given.values()))
    numbers = tuple(proxy for proxy in given.values() if not isinstance(proxy, TensorProxy))
    names = _canonical_names(inputs, numbers, operations)
    made = {names[proxy.name].name: proxy for bsym in bsyms for proxy in bsym.tensors}
    region = Region(
        tuple(_tensors(names[proxy.name] for proxy in inputs)),
        tuple(_renamed(operations, names)),
        numbers=tuple(names[proxy.name] for proxy in numbers),
    )
    return Stretch(region, tuple(bsyms), inputs, made, numbers)


def _canonical_names(
    inputs: Sequence[TensorProxy], numbers: Sequence[Proxy], operations: Iterable[BoundSymbol]
) -> dict[str, Proxy]:
    """For each name of the trace the proxy of its place in the region."""
    names: dict[str, Proxy] = {proxy.name: proxy.named(f"x{place}") for place, proxy in enumerate(inputs)}
    names |= {proxy.name: Proxy(f"n{place}") for place, proxy in enumerate(numbers)}
    given = len(names)
    for operation in operations:
        for proxy in operation.defines:
            new = f"v{len(names) - given}"
            names[proxy.name] = proxy.named(new) if isinstance(proxy, TensorProxy) else replace(proxy, name=new)
    return names


def _renamed(operations: Iterable[BoundSymbol], names: Mapping[str, Proxy]) -> Iterator[BoundSymbol]:
    for operation in operations:
        plain = operation.renamed(names, at=(None, ""))
        yield replace(plain, subsymbols=(), executor="")


def _spelled(tree: Any) -> str:
    kind = type(tree)
    if isinstance(tree, Proxy):
        return tree.name
    if isinstance(tree, tuple | list):
        return f"{kind.__name__}({', '.join(map(_spelled, tree))})"
    if isinstance(tree, dict):
        return f"dict({', '.join(f'{name}={_spelled(value)}' for name, value in tree.items())})"
    return f"{kind.__name__}:{tree!r}"


def _described(proxy: TensorProxy) -> str:
    return f"{proxy.name}: {proxy.dtype} {proxy.shape} {proxy.stride} {proxy.device}"


def _tensors(proxies: Iterable[Proxy]) -> Iterator[TensorProxy]:
    yield from (proxy for proxy in proxies if isinstance(proxy, TensorProxy))
