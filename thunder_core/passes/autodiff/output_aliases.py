"""Output aliases: a program's tail makes the returned views, so that autograd knows the base of each view."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from thunder_core.passes.autodiff.refusals import changes_autograd, underivable
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.tracing.analysis.aliasing import aliased_inputs
from thunder_core.tracing.analysis.grad_mode import grad_modes, tracked_by_autograd
from thunder_core.tracing.analysis.own_derivatives import has_derivative_rule
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace, numbers_of

SPLIT_VIEWS = "split off views"  # `made_by` of a computation without the returned views, which a tail makes


def split_output_aliases(trace: Trace) -> tuple[Trace, Trace | None]:
    """Split a trace into a body without returned views and a tail that makes the views; None if there are no views.

    The body returns the tensors that own their memory. The inputs of the tail are the inputs of the trace that the tail
    reads, followed by these tensors. Raises `Underivable` if it is unknown whether a result is a view.
    """
    views = _ReturnedViews(trace)
    for proxy in trace.outputs:
        if isinstance(proxy, TensorProxy):  # a number read from a tensor is no view
            views.collect(proxy.name)
    if not views.view_ids:
        return trace, None
    tail = [bsym for bsym in views.operations if id(bsym) in views.view_ids]
    defined = {proxy.name for bsym in tail for proxy in bsym.defines}
    read = {proxy.name: proxy for bsym in tail for proxy in bsym.inputs}
    read |= {proxy.name: proxy for proxy in trace.outputs}
    inputs = {proxy.name for proxy in trace.inputs}
    bases = tuple(
        proxy
        for name, proxy in read.items()
        if name not in defined and name not in inputs and not isinstance(proxy, NumberProxy)
    )
    inputs_read = tuple(proxy for proxy in trace.inputs if proxy.name in read)
    body = trace.having(views.bsyms_of_body(bases), made_by=SPLIT_VIEWS, output=bases)
    tail_trace = Trace("tail", (*inputs_read, *bases), tuple(tail), trace.output, SPLIT_VIEWS, trace.origins)
    return body, tail_trace


def with_number_inputs_of_tail(body: Trace, tail: Trace | None) -> tuple[Trace, Trace | None]:
    """Return the body and the tail, both with the symbolic numbers that the tail reads as additional inputs."""
    numbers = () if tail is None else numbers_of(tail)
    if tail is None or not numbers:
        return body, tail
    names = {proxy.name for proxy in body.inputs}
    inputs = (*body.inputs, *(proxy for proxy in numbers if proxy.name not in names))
    defined = {proxy.name for proxy in (*body.inputs, *numbers)}
    bases = [proxy for proxy in tail.inputs if proxy.name not in defined]
    read = {proxy.name for proxy in (*tail.inputs, *numbers)}
    tail = replace(tail, inputs=(*(proxy for proxy in inputs if proxy.name in read), *bases))
    return replace(body, inputs=inputs), tail


def marked_for_autograd(trace: Trace) -> dict[str, BoundSymbol]:
    """Map each tensor that a bound symbol such as `requires_grad_` marks for autograd to that bound symbol."""
    marks = [bsym for bsym in trace.bound_symbols if changes_autograd(bsym)]
    return {proxy.name: bsym for bsym in marks for proxy in bsym.inputs}


class _ReturnedViews:
    """The operations of a trace that make returned views.

    `operations` are all operations, and `view_ids` are the identities (`id`) of the operations that make returned
    views. A bound symbol that has such an operation and other operations is replaced by its operations.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.view_ids: set[int] = set()
        self.operations: list[BoundSymbol] = []
        self._owner: dict[int, BoundSymbol] = {}
        self._maker: dict[str, BoundSymbol] = {}
        self._made_without_grad: set[int] = set()
        self._requires_grad_names = tracked_by_autograd(trace)
        self._marked = marked_for_autograd(trace)
        modes = grad_modes(trace.bound_symbols, enabled=True)
        for bsym, enabled in zip(trace.bound_symbols, modes, strict=True):
            for operation in bsym.operations or (bsym,):
                self.operations.append(operation)
                self._owner[id(operation)] = bsym
                self._maker |= {proxy.name: operation for proxy in operation.defines}
                self._made_without_grad |= set() if enabled else {id(operation)}

    def collect(self, name: str) -> None:
        """Collect the operations that make a returned tensor as a view of a tensor that owns its memory."""
        bsym = self._maker.get(name)
        if bsym is None or id(bsym) in self.view_ids:
            return
        bases = list(aliased_inputs(bsym))
        if not bases:
            return
        owner = self._owner[id(bsym)]
        if owner.has_effect or bsym.symbol.level != "aten" or has_derivative_rule(owner):
            raise Underivable(f"`{bsym.symbol.name}` may return a view, and its base is not known")
        if id(bsym) in self._made_without_grad and any(proxy.name in self._requires_grad_names for proxy in bases):
            raise Underivable(f"`{bsym.symbol.name}` makes a view, which is returned, while autograd is off")
        marks = [self._marked[proxy.name] for proxy in bsym.defines if proxy.name in self._marked]
        if marks:
            raise underivable(marks[0], "it changes how autograd treats a returned tensor")
        self.view_ids.add(id(bsym))
        for proxy in bsym.inputs:
            self.collect(proxy.name)

    def bsyms_of_body(self, returned: Iterable[Proxy]) -> list[BoundSymbol]:
        """Return the bound symbols of the trace, without operations that only make returned views."""
        read = {proxy.name for proxy in returned}
        live: list[BoundSymbol] = []
        for bsym in reversed(self.trace.bound_symbols):
            parts = bsym.operations or (bsym,)
            is_split = any(id(part) in self.view_ids for part in parts)
            with_lines = (
                [replace(part, source=bsym.source, module=bsym.module) for part in parts] if is_split else [bsym]
            )
            for part, old in zip(reversed(with_lines), reversed(parts if is_split else (bsym,)), strict=True):
                if id(old) not in self.view_ids or any(proxy.name in read for proxy in part.defines):
                    live.append(part)
                    read |= {proxy.name for proxy in part.inputs}
        return live[::-1]
