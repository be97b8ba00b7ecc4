"""Reverse mode: a computation becomes a forward that also returns saved values, and a backward that reads them.

The derivative of each bound symbol is PyTorch's own. Equal bound symbols share a derivative. The reverse sweep composes
the derivatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from thunder_core.passes.autodiff.recomputation.memory_budget import fit_budget
from thunder_core.passes.autodiff.recomputation.rematerialization import (
    Rematerialized,
    rematerialize,
    with_recomputation,
)
from thunder_core.passes.autodiff.refusals import (
    require_unwritten,
)
from thunder_core.passes.autodiff.reverse_sweep import MADE_BY, ReverseSweep
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, symbols_in
from thunder_core.tracing.ir.trace import Trace, numbers_of, with_number_inputs
from thunder_core.tracing.ir.tree import leaves


@dataclass(frozen=True, eq=False)
class Differentiated:
    """A computation and its derivative.

    `requires_grad_inputs` are the indices of the inputs that gradients are computed for, and `results` are the indices
    of the outputs that receive gradients. `forward` is the trace that returns the outputs, then `saved`, and then the
    symbolic `numbers`. `backward(...)` makes the backward, which takes `saved` and `numbers`, for the results that have
    gradients. `full_backward` is the backward for all results, before recomputation is added. `rematerialized` is the
    forward with its saved tensors.
    """

    requires_grad_inputs: tuple[int, ...]
    results: tuple[int, ...]
    rematerialized: Rematerialized = field(repr=False)
    full_backward: Trace = field(repr=False)
    sweep: ReverseSweep = field(repr=False)
    numbers: tuple[NumberProxy, ...]

    @cached_property
    def forward(self) -> Trace:
        """The computation, which also returns the saved tensors and the numbers."""
        forward = self.rematerialized.forward
        results = forward.output[: len(forward.output) - len(self.saved)]
        visible = {proxy.name for proxy in (*forward.inputs, *leaves(results)) if isinstance(proxy, Proxy)}
        saved = frozenset(proxy.name for proxy in self.saved) - visible
        return with_number_inputs(replace(forward, output=(*forward.output, *self.numbers), saved=saved))

    @property
    def saved(self) -> tuple[TensorProxy, ...]:
        """The tensors that the backward takes besides the gradients of the results."""
        return self.rematerialized.saved

    def backward(
        self, has_cotangent: Sequence[bool], cuts: Sequence[str] = (), ends: Sequence[str] | None = None
    ) -> Trace:
        """Return the backward for the results that are marked in `has_cotangent`.

        Its inputs are `saved`, `numbers` and the gradients of these results. It returns a gradient, or None, for each
        of `requires_grad_inputs`. `cuts` are names of tensors from which gradients are not propagated further. If
        `ends` is given, which names some of the cuts, the backward returns the gradients of `ends` instead of the
        inputs' gradients. Raises `Underivable` if the backward would read a value that is not saved.
        """
        is_full = all(has_cotangent) and not cuts
        swept = self.full_backward if is_full else self.sweep.backward(has_cotangent, cuts, ends)
        with_saved_inputs = swept.having(
            swept.bound_symbols,
            made_by=MADE_BY,
            inputs=(*self.saved, *self.numbers, *swept.inputs),
            origins={**self.forward.origins, **swept.origins},
        )
        trace = with_recomputation(with_saved_inputs, self.rematerialized)
        unsaved = _undefined_names(trace)
        if unsaved:
            raise Underivable(f"the backward for some results alone reads {', '.join(sorted(unsaved))}")
        return trace

    def reached_gradients(self, has_cotangent: Sequence[bool]) -> list[bool]:
        """Return, for each gradient of an input, whether it depends on the gradients of the marked results."""
        starts = (
            proxy.name for proxy, is_marked in zip(self.full_backward.inputs, has_cotangent, strict=True) if is_marked
        )
        reachable = dependent_names(starts, self.full_backward)
        return [proxy is not None and proxy.name in reachable for proxy in self.full_backward.output]


def differentiate(trace: Trace, *, recompute: bool = False, budget: float = 1.0) -> Differentiated:
    """Return the forward and the backward of a trace whose results autograd would track.

    With `recompute`, the forward does not save cheap values, and the backward recomputes them. `budget` bounds the
    bytes that the forward saves: below 1.0, a fraction of the bytes that it saves without a budget; above 1, a number
    of bytes; 1.0 sets no bound. Raises `Underivable` if no result requires a gradient, if a bound symbol has no
    derivative that can be traced, or if eager PyTorch would report an error that this backward would not report, such
    as a write to a saved tensor.
    """
    sweep = ReverseSweep.of(trace)
    if not sweep.results:
        raise Underivable("no result depends on a tensor that requires a gradient")
    full_backward = sweep.backward([True] * len(sweep.results))
    saved = _saved_tensors(full_backward)
    # The sweep above has filled the `reads` of each step, which `require_unwritten` needs.
    require_unwritten(sweep.steps, {proxy.name for proxy in saved}, trace.aliases)
    forward, results = sweep.forward(saved), len(trace.output)
    rematerialized = rematerialize(forward, saved, results, cheap=recompute)
    if budget != 1.0:
        rematerialized = fit_budget(budget, rematerialized, forward, saved, results, cheap=recompute)
    with_saved_inputs = replace(full_backward, inputs=(*rematerialized.saved, *full_backward.inputs))
    backward = with_recomputation(with_saved_inputs, rematerialized)
    sizes = symbols_in(proxy for bsym in backward.bound_symbols for proxy in (*bsym.inputs, *bsym.outputs))
    return Differentiated(
        requires_grad_inputs=tuple(
            index for index, proxy in enumerate(trace.inputs) if proxy.name in sweep.requires_grad_names
        ),
        results=tuple(index for index, proxy in enumerate(trace.output) if proxy.name in sweep.requires_grad_names),
        rematerialized=rematerialized,
        full_backward=full_backward,
        sweep=sweep,
        numbers=tuple({proxy.name: proxy for proxy in (*numbers_of(backward), *sizes)}.values()),
    )


def dependent_names(names: Iterable[str], trace: Trace) -> set[str]:
    """Return these names, and the names of all values that the bound symbols of a trace compute from them."""
    computed = set(names)
    for bsym in trace.bound_symbols:
        if any(proxy.name in computed for proxy in bsym.inputs):
            computed |= {proxy.name for proxy in bsym.outputs}
    return computed


def _saved_tensors(full_backward: Trace) -> tuple[TensorProxy, ...]:
    """Return the tensors that a backward reads or returns, except its own results and the incoming cotangents."""
    bsyms = full_backward.bound_symbols
    needed = (*(proxy for bsym in bsyms for proxy in bsym.inputs), *full_backward.outputs)
    read = {proxy.name: proxy for proxy in needed if isinstance(proxy, TensorProxy)}
    defined = {p.name for bsym in bsyms for p in bsym.defines} | {p.name for p in full_backward.inputs}
    return tuple(proxy for name, proxy in read.items() if name not in defined)


def _undefined_names(trace: Trace) -> set[str]:
    defined = {proxy.name for proxy in trace.inputs}
    unknown: set[str] = set()
    for bsym in trace.bound_symbols:
        unknown |= {proxy.name for proxy in bsym.inputs} - defined
        defined |= {proxy.name for proxy in bsym.defines}
    return unknown
