"""A trace: one function of the program as a list of bound symbols, immutable and printable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thunder_core.tracing.ir.attention import FlexAttention
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.literal import Definition
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves


@dataclass(frozen=True)
class RefusedOperations:
    """A `count` of bound symbols of the program that an executor could have run and did not, and why.

    A `lasting` reason lies in the bound symbols, not in the state of the machine; one `by_sizes` in that sizes are
    symbolic: the executor runs these for the sizes of a call. One `by_measurement` is a choice: another
    executor is faster, or there was no time to measure.
    """

    executor: str
    reason: str
    count: int
    lasting: bool = True
    by_sizes: bool = False
    by_measurement: bool = False


@dataclass(frozen=True, eq=False)
class Trace(Definition):
    """A function: its name, its inputs, its bound symbols, what it returns, and by which step it was made.

    `origins` says for an input where its value comes from (`module.lm_head.weight`), and in a backward what a name
    is the gradient of; `constants` are the objects that bound symbols use by name and that cannot be written down
    as source; `imports` are modules that bound symbols of plain Python need; `aliases` are the groups of inputs and
    constants that overlap in memory; `refused` is what executors were offered and left to others. `blocks` has the
    names that are made within a checkpointed function, with the number of its call: a backward makes them once more
    instead of having them saved, but for the results of `kept_operations`: aten operations, by the names that their
    bound symbols define. `attentions` says of results of flex attention what the bound symbols that make them compute.
    In a backward, `cotangents` has the names of the whole gradients of the forward's tensors, by the names of these.
    """

    name: str
    inputs: tuple[Proxy, ...]
    bound_symbols: tuple[BoundSymbol, ...]
    output: Any
    made_by: str = "trace"
    origins: Mapping[str, str] = field(default_factory=dict)
    imports: frozenset[str] = frozenset()
    constants: Mapping[str, object] = field(default_factory=dict)
    aliases: tuple[tuple[str, ...], ...] = ()
    refused: tuple[RefusedOperations, ...] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)
    kept_operations: Mapping[str, frozenset[str]] = field(default_factory=dict)
    attentions: Mapping[str, FlexAttention] = field(default_factory=dict)
    cotangents: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return print_trace(self).text

    def __call__(self, *values: Any) -> Any:
        """Run the bound symbols on values of the inputs; a trace among the arguments of an operator is called so."""
        known = {proxy.name: value for proxy, value in zip(self.inputs, values, strict=True)}
        known |= self.constants
        evaluate(self.bound_symbols, known)
        return replace_leaves(self.output, lambda leaf: known[leaf.name] if isinstance(leaf, Proxy) else leaf)

    def __len__(self) -> int:
        return len(self.bound_symbols)

    @property
    def outputs(self) -> tuple[Proxy, ...]:
        """Each proxy that the function returns, once, in order."""
        proxies = {leaf.name: leaf for leaf in leaves(self.output) if isinstance(leaf, Proxy)}
        return tuple(proxies.values())

    def having(self, bound_symbols: Iterable[BoundSymbol], *, made_by: str, **changes: Any) -> Trace:
        """The trace with other bound symbols, signed by the step that made it."""
        return replace(self, bound_symbols=tuple(bound_symbols), made_by=made_by, **changes)

    def at_level(self, level: str) -> Iterator[BoundSymbol]:
        """The bound symbols at level `torch` (as the user wrote them) or `aten` (as PyTorch decomposes them)."""
        for bsym in self.bound_symbols:
            yield from bsym.at_level(level)


def with_subtraces(bsym: BoundSymbol, change: Callable[[Trace], Trace]) -> BoundSymbol:
    """The bound symbol with other traces among its arguments, each in the place of one that it has."""
    if not bsym.functions:
        return bsym
    args, kwargs = replace_leaves(
        (bsym.args, dict(bsym.kwargs)), lambda leaf: change(leaf) if isinstance(leaf, Trace) else leaf
    )
    return replace(bsym, args=args, kwargs=kwargs)


def nested_bound_symbols(trace: Trace) -> Iterator[BoundSymbol]:
    """The bound symbols of a trace, each before those of its functions."""
    for bsym in trace.bound_symbols:
        yield bsym
        for function in bsym.functions:
            yield from nested_bound_symbols(function)


def numbers_of(*traces: Trace) -> tuple[NumberProxy, ...]:
    """The symbolic numbers that traces read and do not take as inputs, in the order in which they first do."""
    numbers: dict[str, NumberProxy] = {}
    for trace in traces:
        taken = {proxy.name for proxy in trace.inputs}
        read = [*(proxy for bsym in trace.bound_symbols for proxy in bsym.inputs), *trace.outputs]
        numbers |= {proxy.name: proxy for proxy in read if isinstance(proxy, NumberProxy) and proxy.name not in taken}
    return tuple(numbers.values())


def with_number_inputs(trace: Trace, place: int | None = None) -> Trace:
    """The trace with all symbolic numbers that it reads among its inputs: behind the others, or from a place on."""
    numbers = numbers_of(trace)
    if not numbers:
        return trace
    place = len(trace.inputs) if place is None else place
    return replace(trace, inputs=(*trace.inputs[:place], *numbers, *trace.inputs[place:]))
