"""The bound symbol of a torch function call that has run on fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from thunder_core.tracing.analysis.data_errors import is_check
from thunder_core.tracing.analysis.own_derivatives import has_own_derivative
from thunder_core.tracing.capture.call import RecordedCall, with_earlier_names
from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.location import Location
from thunder_core.tracing.capture.symbolic.sizes import without_sizes
from thunder_core.tracing.capture.torch_facts.graph import has_own_memory, memory_of
from thunder_core.tracing.capture.torch_facts.symbols import is_ordered, parts_of, symbol_of
from thunder_core.tracing.capture.values import NUMBERS
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, proxies_in
from thunder_core.tracing.ir.tree import leaves, replace_leaves


class Binding:
    """A factory of bound symbols for calls, which tracks the names that recorded bound symbols have defined.

    `location()` returns the current location in the program. With `symbolic_sizes`, symbolic integers are left out of
    the outputs of bound symbols, because the prologue computes them before the trace runs.
    """

    def __init__(self, tensors: Tensors, location: Callable[[], Location], *, symbolic_sizes: bool) -> None:
        self._tensors = tensors
        self._location = location
        self._symbolic_sizes = symbolic_sizes
        self._defined: set[str] = set()

    def note(self, bsym: BoundSymbol) -> None:
        """Record the names that a bound symbol returns, so that they do not count as new in later bound symbols."""
        self._defined.update([proxy.name for proxy in bsym.outputs])

    def bind(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, call: RecordedCall
    ) -> BoundSymbol | None:
        """Return the bound symbol for a call, or None for a call that need not be recorded.

        A call need not be recorded if the trace already has all of its results, and if it writes to no tensor, is not
        ordered, checks no values and does not communicate.
        """
        symbol = symbol_of(function)
        output_proxies = self._proxies_of(output, call)
        inputs = [(tensor, self._tensors.proxy(tensor)) for tensor in tensors_in((args, kwargs))]
        before = {proxy.name: call.before[id(tensor)] for tensor, proxy in inputs if id(tensor) in call.before}
        mutates = [proxy.name for tensor, proxy in inputs if call.written and memory_of(tensor) in call.written]
        ordered = call.random or (is_ordered(symbol) and not call.sets_present_value)
        checks = is_check(function) or any(is_check(part.symbol.target) for part in call.subsymbols)
        communicates = (
            call.uses_process_group or symbol.communicates or any(part.communicates for part in call.subsymbols)
        )
        input_names = {proxy.name for _, proxy in inputs} - before.keys() | self._tensors.outside_names(
            tensors_in(output)
        )
        if not (self._has_new(output_proxies, input_names) or mutates or ordered or checks or communicates):
            return None
        location, opaque = self._location(), call.opaque or call.depends_on_values
        tensors = self._tensors
        parts: Sequence[BoundSymbol] = call.subsymbols
        if not opaque:
            names, results = {proxy.name for _, proxy in inputs}, {proxy.name for proxy in proxies_in(output_proxies)}
            parts = without_regenerated_views(parts, names, results)
        to_proxies = tensors.to_proxies_in_kind if has_own_derivative(function) else tensors.to_proxies
        args, kwargs = with_earlier_names(to_proxies((args, kwargs)), before)
        return BoundSymbol(
            symbol=symbol,
            args=args,
            kwargs=kwargs,
            output=output_proxies,
            subsymbols=() if opaque else parts_of(function, parts),
            source=location.source,
            module=location.module,
            mutates=tuple(before[name].name if name in before else name for name in mutates),
            ordered=ordered,
            fresh=opaque and has_own_memory(tensors_in(output), [tensor for tensor, _ in inputs]),
            uses_process_group=call.uses_process_group,
        )

    def _proxies_of(self, output: object, call: RecordedCall) -> Any:
        """Return a result with proxies for tensors, and for numbers that depend on the values of tensors."""
        proxies = self._tensors.to_proxies(without_sizes(output) if self._symbolic_sizes else output)
        return replace_leaves(proxies, self._number_proxy) if call.depends_on_values else proxies

    def _number_proxy(self, leaf: object) -> Any:
        """Return a proxy for a number that a bound symbol returns; return other leaves unchanged."""
        return Proxy(self._tensors.next_name()) if isinstance(leaf, NUMBERS) else leaf

    def _has_new(self, output_proxies: object, input_names: set[str]) -> bool:
        """Whether a result has a name that is neither an input's nor defined by an earlier bound symbol."""
        names = (leaf.name for leaf in leaves(output_proxies) if isinstance(leaf, Proxy))
        return any(name not in input_names and name not in self._defined for name in names)


def without_regenerated_views(
    parts: Sequence[BoundSymbol], inputs: Set[str], outputs: Set[str]
) -> Sequence[BoundSymbol]:
    """Return the subsymbols of a call without the views that autograd regenerates.

    After a write to a base, autograd computes the views of the base again. No bound symbol reads these views, and their
    base may be an intermediate of another call. `inputs` and `outputs` are the names of the tensors that the call reads
    and returns.
    """
    if len(parts) < 2:
        return parts
    known = set(inputs)
    regenerated = set[str]()
    for part in parts:
        is_regenerated = any(proxy.name not in known for proxy in part.inputs) and not part.has_effect
        (regenerated if is_regenerated else known).update(proxy.name for proxy in part.outputs)
    if not regenerated:
        return parts
    needed, kept = set(outputs), list[BoundSymbol]()
    for part in reversed(parts):
        names = {proxy.name for proxy in part.outputs}
        if not (names and names <= regenerated) or not names.isdisjoint(needed):
            kept.append(part)
            needed.update(proxy.name for proxy in part.inputs)
    return kept[::-1]
