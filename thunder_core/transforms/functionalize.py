"""Functionalization: writes become operations that make new tensors, and what was given is written to at the end."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from thunder_core.analysis.aliasing import AliasSets, alias_sets, is_view
from thunder_core.analysis.grad_mode import followed_by_autograd, grad_modes
from thunder_core.capture.settings import is_decisive
from thunder_core.capture.symbols import symbol_of
from thunder_core.capture.writes import is_reshaping, updates_statistics
from thunder_core.functionalization.functionalizer import Functionalizer
from thunder_core.ir.proxy import Proxy, TensorProxy, environment_of
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.ir.tree import leaves, replace_leaves
from thunder_core.recipe import Transform
from thunder_core.runtime.library.overlap import span

MADE_BY = "functionalize"
COPY = torch.ops.aten.copy_.default
INFERENCE = "inference_mode."
RESIZES = ("aten.set_.", "aten.resize_.", "aten.resize_as_.")
PARTS_FROM_AUTOGRAD = "aten.detach."  # what is written there, autograd does not see
FACTORY = re.compile(r"torch\.ops\.aten\.(new_\w+|\w+_like|zeros|ones|full|empty|rand|randn|eye|arange)\.")
LOOKS_AROUND = "aten.as_strided."  # at memory that need not be part of the tensor that it is given


@dataclass(frozen=True)
class Functionalize(Transform):
    """Functionalize writes to tensors and their views; what comes from outside gets one final copy.

    So these bound symbols can be shared, fused and differentiated like all others. It is PyTorch's own
    functionalization that turns them around. Memory is left as it is, with all bound symbols that write to it, where
    they do more than give it other values: where inputs overlap, where a state is changed on the way or a tensor gets
    another size in place, and where autograd does not see each write, or follows what came from outside (the final copy
    would change what it saved). Of what stays PyTorch may say that it was modified before the backward read it; of what
    is functional it need not.
    """

    before: ClassVar[tuple[str, ...]] = ("cse", "dce")

    def __call__(self, trace: Trace) -> Trace:
        """The trace with every write that can be said otherwise said otherwise."""
        aliasing = alias_sets(trace.bound_symbols, trace.aliases)
        representatives = {aliasing.representative(name) for bsym in trace.bound_symbols for name in bsym.mutates}
        if representatives:
            representatives -= _Excluded(trace, aliasing).representatives()
        while representatives:
            try:
                return _Rewriting(trace, aliasing, frozenset(representatives)).trace()
            except _KeepWrites as unfit:
                representatives -= unfit.representatives
        return trace.having(trace.bound_symbols, made_by=MADE_BY)


class _KeepWrites(Exception):
    """Some memory has to be left as it is."""

    def __init__(self, representatives: Iterable[str]) -> None:
        super().__init__()
        self.representatives = frozenset(representatives)


class _Excluded:
    """The memory of a trace, by the representatives of its alias sets, that is left as it is."""

    def __init__(self, trace: Trace, aliasing: AliasSets) -> None:
        self.trace = trace
        self.aliasing = aliasing
        self.recorded = followed_by_autograd(trace)
        self.followed = {aliasing.representative(name) for name in self.recorded}
        self.given = Counter(
            aliasing.representative(name) for name in (*(p.name for p in trace.inputs), *trace.constants)
        )

    def representatives(self) -> set[str]:
        """All of them."""
        found = {
            representative
            for representative, count in self.given.items()
            if count > 1 or representative in self.followed
        }
        enabled = torch.is_grad_enabled()
        bsyms = self.trace.bound_symbols
        for bsym, enabled in zip(bsyms, grad_modes(bsyms), strict=True):
            found |= set() if enabled else self._of((*bsym.inputs, *bsym.outputs)) & self.followed
            found |= self._ordered(bsym) if bsym.ordered else set()
            for operation in bsym.at_level("aten"):
                found |= self._operation(operation, bsym)
            if INFERENCE in bsym.symbol.name or is_decisive(bsym):
                return {
                    self.aliasing.representative(name) for each in self.trace.bound_symbols for name in each.mutates
                }
        return found if enabled else found | self.followed

    def _of(self, proxies: Iterable[Proxy]) -> set[str]:
        return {self.aliasing.representative(proxy.name) for proxy in proxies}

    def _ordered(self, bsym: BoundSymbol) -> set[str]:
        """A bound symbol that changes a state may read memory, as drawing random numbers of its size does, but no more.

        What it draws from the generator that there is may go anywhere.
        """
        if bsym.subsymbols and all(map(_draws_or_computes, bsym.at_level("aten"))):
            return set()
        given, made = self._of(bsym.inputs), self._of(bsym.outputs)
        only_reads = bool(bsym.subsymbols) and not bsym.mutates and not given & made
        return set() if only_reads else given | made

    def _operation(self, operation: BoundSymbol, bsym: BoundSymbol) -> set[str]:
        name = operation.symbol.name.removeprefix("torch.ops.")
        memory = self._of(operation.outputs)
        if name.startswith(RESIZES):
            return memory
        target = operation.symbol.target
        if isinstance(target, torch._ops.OpOverload) and is_reshaping(target):
            return memory & (self.given.keys() | self._of(self.trace.outputs))  # the object is seen from outside
        if name.startswith(PARTS_FROM_AUTOGRAD):
            parts = any(proxy.name in self.recorded for proxy in bsym.inputs) and _is_used(operation, bsym)
            return memory & self.followed if parts else set()
        if _looks_around(operation):
            return memory & (self.given.keys() | (set() if _stays_within(operation) else self.followed))
        if updates_statistics(target) and any(proxy.name in self.recorded for proxy in bsym.outputs):
            return {self.aliasing.representative(name) for name in bsym.mutates}
        return set()


@dataclass
class _Rewriting:
    """One pass over a trace: the alias sets with these representatives are functionalized."""

    source: Trace
    aliasing: AliasSets
    representatives: frozenset[str]
    bsyms: list[BoundSymbol] = field(default_factory=list)

    def __post_init__(self) -> None:
        taken = {proxy.name for bsym in self.source.bound_symbols for proxy in _names(bsym)}
        taken |= {proxy.name for proxy in self.source.inputs} | self.source.constants.keys()
        self._fresh = (name for name in (f"t{n}" for n in itertools.count()) if name not in taken)
        self._makers = {proxy.name: bsym for bsym in self.source.bound_symbols for proxy in bsym.defines}
        self._renamed: dict[str, Proxy] = {}
        self._functionalizer = Functionalizer(lambda: next(self._fresh), environment_of(self.source.inputs))

    def trace(self) -> Trace:
        """The whole trace; `_KeepWrites` where that cannot be."""
        for bsym in self.source.bound_symbols:
            if self._transforms(bsym):
                self._run(bsym)
            else:
                self.bsyms.append(self._reading(bsym))
        written = self._copies()
        names = self._returned(written)

        def change(leaf: Any) -> Any:
            return names.get(leaf.name, leaf) if isinstance(leaf, Proxy) else leaf

        return self.source.having(self.bsyms, made_by=MADE_BY, output=replace_leaves(self.source.output, change))

    def _of(self, names: Iterable[str]) -> set[str]:
        return {self.aliasing.representative(name) for name in names} & self.representatives

    def _transforms(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol writes to memory that is named anew, or makes a view of it."""
        given, made = (self._of(proxy.name for proxy in proxies) for proxies in (bsym.inputs, bsym.defines))
        return bool(self._of(bsym.mutates) or given & made)

    def _run(self, bsym: BoundSymbol) -> None:
        """The bound symbol in operations that do not write."""
        representatives = self._of(proxy.name for proxy in (*bsym.inputs, *bsym.outputs))
        if not {self.aliasing.representative(name) for name in bsym.mutates} <= self.representatives:
            raise _KeepWrites(representatives)  # it writes to other memory too, which is left as it is
        try:
            for operation in bsym.at_level("aten"):
                if operation.gives_number:
                    continue
                if _looks_around(operation):
                    self._value(operation.args[0], representatives)  # in memory as it is in the trace, or unfit
                self._functionalizer.run(operation)
        except Exception as error:  # whatever PyTorch says to the operation under functionalization
            raise _KeepWrites(representatives) from error
        for proxy in bsym.inputs:
            if isinstance(proxy, TensorProxy) and proxy.name in bsym.mutates:
                self._functionalizer.value(proxy)  # here and now: what is put off may come in another grad mode
        for proxy in bsym.tensors:
            if not self._of([proxy.name]):
                self._renamed[proxy.name] = self._value(proxy, representatives)
        self._take(bsym)

    def _reading(self, bsym: BoundSymbol) -> BoundSymbol:
        """A bound symbol that only reads, in the names of the values."""
        read = [proxy for proxy in bsym.inputs if isinstance(proxy, TensorProxy) and self._of([proxy.name])]
        names: dict[str, Proxy] = {proxy.name: self._value(proxy) for proxy in read}
        names |= {proxy.name: self._renamed[proxy.name] for proxy in bsym.inputs if proxy.name in self._renamed}
        self._take(bsym)
        for proxy in bsym.tensors:
            if self._of([proxy.name]):
                self._functionalizer.add(proxy)
        return bsym.renamed(names) if names else bsym

    def _take(self, bsym: BoundSymbol | None) -> None:
        """Write down the operations that came out, at the place of the bound symbol."""
        for one in self._functionalizer.take_operations():
            self.bsyms.append(one if bsym is None else replace(one, source=bsym.source, module=bsym.module))

    def _value(self, proxy: TensorProxy, representatives: Iterable[str] = ()) -> TensorProxy:
        """The value of a name now, if that is as the rest of the trace knows it, down to its strides."""
        representatives = representatives or self._of([proxy.name])
        try:
            value = self._functionalizer.value(proxy)
        except Exception as error:  # the same
            raise _KeepWrites(representatives) from error
        if (value.shape, value.stride, value.dtype) != (proxy.shape, proxy.stride, proxy.dtype):
            raise _KeepWrites(representatives)
        return replace(value, requires_grad=proxy.requires_grad)

    def _copies(self) -> set[str]:
        """Write to what came from outside what it has to have at the end; the representatives of their alias sets."""
        last = {self.aliasing.representative(name): bsym for bsym in self.source.bound_symbols for name in bsym.mutates}
        used = {proxy.name: proxy for bsym in self.source.bound_symbols for proxy in bsym.inputs}
        given = [used[name] for name in (*(p.name for p in self.source.inputs), *self.source.constants) if name in used]
        for proxy in given:
            if isinstance(proxy, TensorProxy) and self._of([proxy.name]):
                place = last[self.aliasing.representative(proxy.name)]
                value = self._value(proxy)
                self._take(place)
                copy = BoundSymbol(symbol_of(COPY), (proxy, value), {}, proxy, mutates=(proxy.name,))
                self.bsyms.append(replace(copy, source=place.source, module=place.module))
        return self._of(proxy.name for proxy in given)

    def _returned(self, written: set[str]) -> dict[str, Proxy]:
        """New names for what is returned: a view of what came from outside is one again, the others are values."""
        names: dict[str, Proxy] = dict(self._renamed)
        for proxy in self.source.outputs:
            if self._of([proxy.name]) & written:
                self._view_again(proxy, names)
            elif self._of([proxy.name]) and isinstance(proxy, TensorProxy):
                names[proxy.name] = self._value(proxy)
        self._take(None)
        return names

    def _view_again(self, proxy: Proxy, names: dict[str, Proxy]) -> None:
        """Make a view again, of what was written to at the end."""
        maker = self._makers.get(proxy.name)
        if maker is None or proxy.name in names:
            return
        if maker.has_effect or not is_view(maker):
            raise _KeepWrites(self._of([proxy.name]))
        for given in maker.inputs:
            self._view_again(given, names)
        read = {given.name for given in maker.inputs}
        for made in _names(maker):
            if isinstance(made, TensorProxy) and made.name not in read:
                names[made.name] = made.named(next(self._fresh))
        self.bsyms.append(maker.renamed(names))


def _looks_around(operation: BoundSymbol) -> bool:
    """Whether an operation addresses memory by strides of its own."""
    return operation.symbol.name.removeprefix("torch.ops.").startswith(LOOKS_AROUND)


def _stays_within(operation: BoundSymbol) -> bool:
    """Whether what an operation addresses by strides of its own are elements of its input, as their metadata tells."""
    (source, *_), result = operation.args, operation.output
    offset = operation.args[3] if len(operation.args) > 3 else operation.kwargs.get("storage_offset")
    if offset is not None or not isinstance(source, TensorProxy) or not isinstance(result, TensorProxy):
        return False
    read, addressed = (torch.empty_strided(proxy.shape, proxy.stride, device="meta") for proxy in (source, result))
    return bool(torch.ops.aten.is_non_overlapping_and_dense(read)) and span(addressed) <= span(read)


def _draws_or_computes(operation: BoundSymbol) -> bool:
    """Whether an operation changes no state but that of the random numbers."""
    target = operation.symbol.target
    return isinstance(target, torch._ops.OpOverload) and not any(
        isinstance(leaf, torch.Generator | Proxy) and not isinstance(leaf, TensorProxy)
        for leaf in leaves((operation.args, dict(operation.kwargs)))
    )


def _is_used(operation: BoundSymbol, bsym: BoundSymbol) -> bool:
    """Whether anyone reads what an operation makes; what autograd makes for itself on the way, nobody does.

    Nor does it matter for what has just been made with nothing but another tensor's shape.
    """
    given = {proxy.name for proxy in operation.inputs}
    makers = [one for one in bsym.at_level("aten") if any(proxy.name in given for proxy in one.defines)]
    if makers and all(FACTORY.match(maker.symbol.name) for maker in makers):
        return False
    made = {proxy.name for proxy in operation.outputs}
    readers = (one for one in bsym.at_level("aten") if one is not operation)
    return any(proxy.name in made for one in readers for proxy in one.inputs) or any(
        proxy.name in made for proxy in bsym.outputs
    )


def _names(bsym: BoundSymbol) -> Iterator[Proxy]:
    """Each name that a bound symbol or one of its operations returns."""
    yield from bsym.outputs
    for part in bsym.subsymbols:
        yield from _names(part)
