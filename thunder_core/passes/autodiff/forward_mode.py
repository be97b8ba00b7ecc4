"""Forward mode: the Jacobian-vector products (JVPs) of bound symbols extend a computation by tangents."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from thunder_core.passes.autodiff.jvp import JVP, derive_jvp
from thunder_core.passes.autodiff.refusals import underivable
from thunder_core.passes.autodiff.step import corresponding_proxies, derivation_key
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.tracing.capture.fakes.memo import metadata
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(eq=False)
class ForwardSweep:
    """A computation, as `bsyms`, that also computes tangents. `tangents` maps names of tensors to their tangents.

    `names` yields fresh names for intermediates. Equal bound symbols share a JVP.
    """

    names: Iterator[str]
    tangents: dict[str, TensorProxy]
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
        old, jvp = self._derive_jvp(bsym, input_tangents)
        names: dict[str, Proxy] = corresponding_proxies(old, bsym)
        names |= {tangent.name: self.tangents[names[name].name] for name, tangent in jvp.input_tangents.items()}
        if not jvp.computes_results:
            self.bsyms.append(bsym)
        for operation in jvp.bsyms:
            self._assign_names(operation, names)
            renamed = operation.rename(names, at=(bsym.source, bsym.module))
            self.bsyms.append(replace(renamed, executor=bsym.executor if jvp.computes_results else ""))
        for name, tangent in jvp.tangents.items():
            tangent_name = names[tangent.name]
            assert isinstance(tangent_name, TensorProxy)
            self.tangents[names[name].name] = tangent_name

    def _derive_jvp(self, bsym: BoundSymbol, input_tangents: Mapping[str, TensorProxy]) -> tuple[BoundSymbol, JVP]:
        layouts = tuple(metadata(tangent) for tangent in input_tangents.values())
        key = (derivation_key(bsym, set(input_tangents)), layouts)
        if key not in self._jvps:
            try:
                self._jvps[key] = (bsym, derive_jvp(bsym, input_tangents))
            except Underivable as error:
                raise underivable(bsym, str(error)) from error
        return self._jvps[key]

    def _assign_names(self, bsym: BoundSymbol, names: dict[str, Proxy]) -> None:
        """Add to `names` a proxy with a fresh name for each value that a bound symbol makes and `names` lacks."""
        for proxy in bsym.defines:
            if proxy.name not in names:
                new = next(self.names)
                names[proxy.name] = proxy.named(new) if isinstance(proxy, TensorProxy) else Proxy(new)


def forward_sweep(
    bsyms: Sequence[BoundSymbol], tangents: Mapping[str, TensorProxy], names: Iterator[str]
) -> ForwardSweep:
    """Return the sweep over bound symbols. `tangents` has the inputs' tangents by name; `names` yields fresh names."""
    sweep = ForwardSweep(names, dict(tangents))
    for bsym in bsyms:
        sweep.add(bsym)
    return sweep
