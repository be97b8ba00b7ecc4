"""A step of the reverse sweep: a bound symbol with its derivation, which equal bound symbols share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from thunder_core.passes.autodiff.derivation import VJP, Derivation
from thunder_core.tracing.analysis.aliasing import is_view
from thunder_core.tracing.analysis.structure import structural_key
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves


@dataclass(eq=False)
class Step:
    """A bound symbol of the sweep with its derivation, or None if autograd does not track it.

    Equal bound symbols share a derivation. `names` maps the names of the derivation to proxies of the trace. `reads`
    are the names that the backward of the bound symbol reads; the sweep fills this set.
    """

    bsym: BoundSymbol
    derivation: Derivation | None = None
    names: dict[str, Proxy] = field(default_factory=dict)
    reads: set[str] = field(default_factory=set)

    @property
    def results(self) -> tuple[Proxy, ...]:
        """The proxies that receive gradients."""
        return () if self.derivation is None else tuple(self.names[p.name] for p in self.derivation.results)

    @property
    def differentiated_inputs(self) -> tuple[Proxy, ...]:
        """The proxies that gradients are computed for."""
        if self.derivation is None:
            return ()
        return tuple(self.names[proxy.name] for proxy in self.derivation.differentiated_inputs)

    @property
    def bsyms(self) -> tuple[BoundSymbol, ...]:
        """The aten operations of the bound symbol; their intermediate tensors have names of the trace."""
        assert self.derivation is not None
        return tuple(self.rename(bsym, self.names) for bsym in self.derivation.bsyms)

    def rename(self, bsym: BoundSymbol, names: Mapping[str, Proxy], derives: BoundSymbol | None = None) -> BoundSymbol:
        """Return an operation of the derivation, with names of the trace and the bound symbol's source line."""
        renamed = bsym.rename(names, at=(self.bsym.source, self.bsym.module))
        return replace(renamed, executor=self.bsym.executor, derives=derives)


def derivation_key(bsym: BoundSymbol, requires_grad_names: set[str]) -> Hashable:
    """Return a key that is equal for bound symbols that share a derivation."""
    numbers: dict[str, int] = {}
    input_names = [leaf.name for leaf in leaves((bsym.args, dict(bsym.kwargs))) if isinstance(leaf, Proxy)]
    input_numbers = tuple(numbers.setdefault(name, len(numbers)) for name in input_names)
    returned = tuple(numbers.get(proxy.name, -1) for proxy in bsym.outputs)
    return (structural_key(bsym), input_numbers, returned, tuple(name in requires_grad_names for name in numbers))


def corresponding_proxies(old: BoundSymbol, new: BoundSymbol) -> dict[str, Proxy]:
    """Map each name in the bound symbol `old` to the proxy at the same position of `new`, an equal bound symbol."""
    pairs = zip(
        leaves((old.args, dict(old.kwargs), old.output)), leaves((new.args, dict(new.kwargs), new.output)), strict=True
    )
    return {leaf.name: counterpart for leaf, counterpart in pairs if isinstance(leaf, Proxy)}


def recomputed_views(derivation: Derivation, vjp: VJP) -> list[BoundSymbol]:
    """Return the views that the backward recomputes from inputs and outputs of the bound symbol."""
    outside = {proxy.name for proxy in (*derivation.bsym.inputs, *derivation.bsym.outputs)}
    makers = {proxy.name: bsym for bsym in derivation.bsyms for proxy in bsym.defines}
    recomputation: dict[int, BoundSymbol] = {}

    def add_views(name: str) -> bool:
        """Return whether a tensor is made of inputs and outputs by views only; if so, add these views to the result."""
        if name in outside:
            return True
        bsym = makers.get(name)
        if bsym is None or not is_view(bsym) or not all(add_views(proxy.name) for proxy in bsym.inputs):
            return False
        recomputation[id(bsym)] = bsym
        return True

    for name in vjp.reads:
        recomputation_before = dict(recomputation)
        if not add_views(name):
            recomputation = recomputation_before
    return list(recomputation.values())
