"""Forward-mode differentiation: add the bound symbols that compute the tangents of a computation's results."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from thunder_core.passes.autodiff.jvp import JVP, derive_jvp
from thunder_core.passes.autodiff.refusals import packed_results, require_separate_results, underivable
from thunder_core.passes.autodiff.step import corresponding_proxies, derivation_key
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.tracing.capture.fakes.memo import metadata
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(eq=False)
class ForwardSweep:
    """Builds a computation with tangents, one bound symbol at a time.

    `bsyms` are the bound symbols so far. `tangents` maps the name of a tensor to its tangent. `fresh_names` yields
    names for new values. Equal bound symbols share a Jacobian-vector product (JVP). Results in `packed` are refused.
    """

    fresh_names: Iterator[str]
    tangents: dict[str, TensorProxy]
    packed: Set[str] = frozenset()
    bsyms: list[BoundSymbol] = field(default_factory=list)
    _jvps: dict[Hashable, tuple[BoundSymbol, JVP]] = field(default_factory=dict)

    def add(self, bsym: BoundSymbol) -> None:
        """Add a bound symbol, and the bound symbols that compute the tangents of its results.

        Raises `Underivable` for a bound symbol without a JVP. A JVP that also computes the results replaces the bound
        symbol.
        """
        input_tangents = {proxy.name: self.tangents[proxy.name] for proxy in bsym.inputs if proxy.name in self.tangents}
        if not input_tangents:
            self.bsyms.append(bsym)
            return
        require_separate_results(bsym, self.packed)
        derived_from, jvp = self._derive_jvp(bsym, input_tangents)
        proxies: dict[str, Proxy] = corresponding_proxies(derived_from, bsym)
        proxies |= {tangent.name: self.tangents[proxies[name].name] for name, tangent in jvp.input_tangents.items()}
        if not jvp.computes_results:
            self.bsyms.append(bsym)
        for operation in jvp.bsyms:
            self._add_proxies(operation, proxies)
            renamed = operation.rename(proxies, at=(bsym.source, bsym.module))
            self.bsyms.append(replace(renamed, executor=bsym.executor if jvp.computes_results else ""))
        for name, tangent in jvp.tangents.items():
            tangent_proxy = proxies[tangent.name]
            assert isinstance(tangent_proxy, TensorProxy)
            self.tangents[proxies[name].name] = tangent_proxy

    def _derive_jvp(self, bsym: BoundSymbol, input_tangents: Mapping[str, TensorProxy]) -> tuple[BoundSymbol, JVP]:
        """Return the JVP of an equal bound symbol, and this bound symbol."""
        tangent_metadata = tuple(metadata(tangent) for tangent in input_tangents.values())
        key = (derivation_key(bsym, set(input_tangents)), tangent_metadata)
        if key not in self._jvps:
            try:
                self._jvps[key] = (bsym, derive_jvp(bsym, input_tangents))
            except Underivable as error:
                raise underivable(bsym, str(error)) from error
        return self._jvps[key]

    def _add_proxies(self, bsym: BoundSymbol, proxies: dict[str, Proxy]) -> None:
        """Add a proxy with a fresh name for each result of a bound symbol that `proxies` lacks."""
        for proxy in bsym.defines:
            if proxy.name not in proxies:
                new = next(self.fresh_names)
                proxies[proxy.name] = proxy.with_name(new) if isinstance(proxy, TensorProxy) else Proxy(new)


def forward_sweep(
    bsyms: Sequence[BoundSymbol], tangents: Mapping[str, TensorProxy], fresh_names: Iterator[str]
) -> ForwardSweep:
    """Return the computation with tangents. `tangents` are those of the inputs by name; `fresh_names` yields names."""
    sweep = ForwardSweep(fresh_names, dict(tangents), packed_results(bsyms))
    for bsym in bsyms:
        sweep.add(bsym)
    return sweep
