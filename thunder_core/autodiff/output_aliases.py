"""The tail of a computation: the views that it returns, made behind it, where autograd sees whose views they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from thunder_core.analysis.aliasing import aliased_inputs
from thunder_core.analysis.grad_mode import followed_by_autograd, grad_modes
from thunder_core.autodiff.refusals import AUTOGRAD, underivable
from thunder_core.autodiff.rules import is_ruled
from thunder_core.autodiff.tape import Underivable
from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.lower.region import operations_of


def split_views(trace: Trace) -> tuple[Trace, Trace | None]:
    """The trace up to the tensors that own their memory, and the tail that makes the views of them; None if none is.

    The first returns what the second takes, apart from inputs of the trace, which stand first among those of the tail.
    Raises `Underivable` where nothing tells whether a result is a view.
    """
    viewed = _Views(trace)
    for proxy in trace.outputs:
        viewed.reach(proxy.name)
    if not viewed.lines:
        return trace, None
    tail = [line for line in viewed.operations if id(line) in viewed.lines]
    made = {proxy.name for line in tail for proxy in line.defines}
    read = {proxy.name: proxy for line in tail for proxy in line.inputs}
    read |= {proxy.name: proxy for proxy in trace.outputs}
    inputs = {proxy.name for proxy in trace.inputs}
    bases = tuple(proxy for name, proxy in read.items() if name not in made and name not in inputs)
    given = tuple(proxy for proxy in trace.inputs if proxy.name in read)
    body = trace.having(viewed.remaining(bases), made_by="part views", output=bases)
    ends = Trace("tail", (*given, *bases), tuple(tail), trace.output, "part views", trace.origins)
    return body, ends


def marked_for_autograd(trace: Trace) -> dict[str, BoundSymbol]:
    """The tensors of which a line says what autograd is to do with them, such as `requires_grad_`, with that line."""
    marks = [line for line in trace.bound_symbols if line.symbol.short_name in AUTOGRAD]
    return {proxy.name: line for line in marks for proxy in line.inputs}


class _Views:
    """Which operations of a trace make the views that are returned; the lines that they are part of come apart."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.lines: set[int] = set()
        self.operations: list[BoundSymbol] = []
        self._owner: dict[int, BoundSymbol] = {}
        self._maker: dict[str, BoundSymbol] = {}
        self._off: set[int] = set()
        self._followed = followed_by_autograd(trace)
        self._marked = marked_for_autograd(trace)
        modes = grad_modes(trace.bound_symbols, enabled=True)
        for line, enabled in zip(trace.bound_symbols, modes, strict=True):
            for part in operations_of(line) or (line,):
                self.operations.append(part)
                self._owner[id(part)] = line
                self._maker |= {proxy.name: part for proxy in part.defines}
                self._off |= set() if enabled else {id(part)}

    def reach(self, name: str) -> None:
        """Note the views that lead to a tensor."""
        line = self._maker.get(name)
        if line is None or id(line) in self.lines:
            return
        bases = list(aliased_inputs(line))
        if not bases:
            return
        owner = self._owner[id(line)]
        if owner.has_effect or line.symbol.level != "aten" or is_ruled(owner):
            raise Underivable(f"`{line.symbol.name}` may return a view, and nothing says of what")
        if id(line) in self._off and any(proxy.name in self._followed for proxy in bases):
            raise Underivable(f"`{line.symbol.name}` makes a view that is returned where autograd is off")
        marks = [self._marked[proxy.name] for proxy in line.defines if proxy.name in self._marked]
        if marks:
            raise underivable(marks[0], "it changes what autograd does with a tensor that is returned")
        self.lines.add(id(line))
        for proxy in line.inputs:
            self.reach(proxy.name)

    def remaining(self, returned: Iterable[Proxy]) -> list[BoundSymbol]:
        """The lines that stay: of one that comes apart its operations, but for returned views that no line reads."""
        read = {proxy.name for proxy in returned}
        kept: list[BoundSymbol] = []
        for line in reversed(self.trace.bound_symbols):
            parts = operations_of(line) or (line,)
            apart = any(id(part) in self.lines for part in parts)
            placed = [replace(part, source=line.source, module=line.module) for part in parts] if apart else [line]
            for part, old in zip(reversed(placed), reversed(parts if apart else (line,)), strict=True):
                if id(old) not in self.lines or any(proxy.name in read for proxy in part.defines):
                    kept.append(part)
                    read |= {proxy.name for proxy in part.inputs}
        return kept[::-1]
