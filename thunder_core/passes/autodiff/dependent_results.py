"""Dependent results: results of a program that are computed from other results.

The functions find these results, and cut a computation where they start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thunder_core.backend.runtime.autograd_signature import RECORDED, DependentResult
from thunder_core.passes.autodiff.reverse_mode import dependent_names
from thunder_core.passes.autodiff.reverse_sweep import ReverseSweep
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.graph_cuts import replaced


def find_dependent_results(
    body: Trace, tail: Trace | None, results: Sequence[int], sweep: ReverseSweep
) -> tuple[DependentResult, ...]:
    """Return the dependent results of a body, each after the dependent results among its sources.

    A dependent result is computed from other outputs of the program, its sources. The `tail` makes the outputs that are
    views of the body's results. `results` are the indices of the body's results that receive gradients.
    """
    outputs = (body if tail is None else tail).output
    names_of_views = {index: _names_of_views(body.output[index].name, tail) for index in results}
    candidates = {
        index: proxy.name
        for index, proxy in enumerate(outputs)
        if isinstance(proxy, TensorProxy) and proxy.name in sweep.requires_grad_names
    }
    reached = {name: _names_with_gradients_to(name, sweep) for name in set(candidates.values())}
    sources = {
        index: tuple(
            source
            for source, name in candidates.items()
            if name not in names_of_views[index] and body.output[index].name in reached[name]
        )
        for index in results
    }
    return tuple(
        DependentResult(index, sources[index], _indices_of(names_of_views[index], outputs))
        for index in sorted(results, key=lambda index: len(sources[index]))
        if sources[index]
    )


def _indices_of(names: set[str], outputs: Sequence[Any]) -> tuple[int, ...]:
    return tuple(index for index, proxy in enumerate(outputs) if isinstance(proxy, Proxy) and proxy.name in names)


def _names_of_views(name: str, tail: Trace | None) -> set[str]:
    """Return the name of a result, and the names of all its views that the tail makes."""
    return {name} if tail is None else dependent_names([name], tail)


def _names_with_gradients_to(name: str, sweep: ReverseSweep) -> set[str]:
    """Return the name of a tensor, and the names of all tensors whose gradients flow back to this tensor."""
    reached = {name}
    for step in sweep.steps:
        if any(proxy.name in reached for proxy in step.differentiated_inputs):
            reached |= {proxy.name for proxy in step.results}
    return reached


def cut_at_sources(body: Trace, names: Sequence[str]) -> Trace:
    """Return the body with an additional input for each of these names.

    All later bound symbols read the input in place of the computed tensor. The new body returns the results of the body
    as it computes them, followed by the computed tensors with these names.
    """
    computed: dict[str, TensorProxy] = {}
    bsyms: list[BoundSymbol] = []
    replacements = {name: Proxy(f"{name}_given") for name in names}
    for bsym in body.bound_symbols:
        sources = [
            proxy
            for proxy in bsym.outputs
            if isinstance(proxy, TensorProxy) and proxy.name in replacements.keys() - computed
        ]
        computed |= {proxy.name: proxy.with_name(f"{proxy.name}_computed") for proxy in sources}
        bsyms.append(bsym.rename({proxy.name: computed[proxy.name] for proxy in sources}))
        bsyms += [
            BoundSymbol(symbol_of(replaced), (computed[proxy.name], replacements[proxy.name]), {}, proxy)
            for proxy in sources
        ]
    proxies = {proxy.name: proxy for bsym in body.bound_symbols for proxy in bsym.outputs}
    outputs = (*(computed.get(proxy.name, proxy) for proxy in body.output), *(proxies[name] for name in names))
    inputs = (*body.inputs, *replacements.values())
    cut = body.having(bsyms, made_by="cut at sources")
    return replace(cut, name=RECORDED, inputs=inputs, output=outputs)
