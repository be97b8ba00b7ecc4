"""A trace: a function, such as a program's computation, as an immutable list of bound symbols. It prints as Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thunder_core.tracing.ir.attention import FlexAttention
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.literal import Definition
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, proxies_in
from thunder_core.tracing.ir.tree import replace_leaves


@dataclass(frozen=True)
class RefusedOperations:
    """The number of bound symbols that an executor was offered and did not claim, and the reason.

    A `lasting` reason depends on the bound symbols, and not on the state of the machine. If `by_sizes` is set, the
    executor runs the bound symbols for constant sizes, but not for symbolic sizes. If `by_measurement` is set, another
    executor is faster, or there was no time to measure.
    """

    executor: str
    reason: str
    count: int
    lasting: bool = True
    by_sizes: bool = False
    by_measurement: bool = False


@dataclass(frozen=True)
class ChosenKernel:
    """A kernel that an executor chose by a measurement: the measured times in words, and the number of its calls."""

    executor: str
    choice: str
    count: int


@dataclass(frozen=True, eq=False)
class Trace(Definition):
    """A function: its name, its inputs, its bound symbols, its output, and the step that made it.

    - `origins` maps names of inputs to the origins of their values (`module.lm_head.weight`); in a backward, it also
      maps names of gradients to the tensors that they belong to.
    - `imports` are the modules that Python statements need.
    - `constants` are the objects, without a source form, that bound symbols refer to by name.
    - `aliases` are the groups of inputs and constants that overlap in memory.
    - `refused` lists the operations that executors were offered and did not claim, and `chosen` the kernels that
    executors chose by a measurement, except those of compiled regions.
    - `blocks` maps the names that are defined within a checkpointed function to the number of its call. A backward
    recomputes these values instead of saving them.
    - `kept_operations` are the exceptions within `blocks`: aten operations whose results are saved, by the names that
    their bound symbols define.
    - `attentions` has the flex attention calls by the names of their results.
    - `cotangents`, in a backward, maps the names of the forward's tensors to the names of their complete gradients.
    - `saved`, in a forward, are the names of the tensors that it computes and returns for the backward alone.
    - `lent` are the names of saved tensors that stay in the memory of a wrapper (see `backend/fusion/lending.py`): in a
    claimed forward, tensors that it returns; in a backward, inputs.
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
    chosen: tuple[ChosenKernel, ...] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)
    kept_operations: Mapping[str, frozenset[str]] = field(default_factory=dict)
    attentions: Mapping[str, FlexAttention] = field(default_factory=dict)
    cotangents: Mapping[str, str] = field(default_factory=dict)
    saved: frozenset[str] = frozenset()
    lent: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return print_trace(self).text

    def __call__(self, *values: Any) -> Any:
        """Run the bound symbols on values of the inputs, and return the output.

        An operator that has a sub-trace among its arguments calls the sub-trace like a function.
        """
        values_by_name = {proxy.name: value for proxy, value in zip(self.inputs, values, strict=True)}
        values_by_name |= self.constants
        evaluate(self.bound_symbols, values_by_name)
        return replace_leaves(self.output, lambda leaf: values_by_name[leaf.name] if isinstance(leaf, Proxy) else leaf)

    def __len__(self) -> int:
        return len(self.bound_symbols)

    @property
    def outputs(self) -> tuple[Proxy, ...]:
        """The proxies that the function returns, without duplicates, in order."""
        return proxies_in(self.output)

    def having(self, bound_symbols: Iterable[BoundSymbol], *, made_by: str, **changes: Any) -> Trace:
        """Return the trace with other bound symbols and `changes` of other fields; `made_by` names the step."""
        return replace(self, bound_symbols=tuple(bound_symbols), made_by=made_by, **changes)

    def at_level(self, level: str) -> Iterator[BoundSymbol]:
        """Yield the bound symbols at level `torch` (the user's calls) or `aten` (PyTorch's decomposition)."""
        for bsym in self.bound_symbols:
            yield from bsym.at_level(level)


def with_subtraces(bsym: BoundSymbol, change: Callable[[Trace], Trace]) -> BoundSymbol:
    """Return the bound symbol with `change` applied to each trace among its arguments."""
    if not bsym.functions:
        return bsym
    args, kwargs = replace_leaves(
        (bsym.args, dict(bsym.kwargs)), lambda leaf: change(leaf) if isinstance(leaf, Trace) else leaf
    )
    return replace(bsym, args=args, kwargs=kwargs)


def nested_bound_symbols(trace: Trace) -> Iterator[BoundSymbol]:
    """Yield the bound symbols of a trace, each followed by the bound symbols of its functions."""
    for bsym in trace.bound_symbols:
        yield bsym
        for function in bsym.functions:
            yield from nested_bound_symbols(function)


def numbers_of(*traces: Trace) -> tuple[NumberProxy, ...]:
    """Return the symbolic numbers that traces read but do not have as inputs, in the order of the first read."""
    numbers: dict[str, NumberProxy] = {}
    for trace in traces:
        names = {proxy.name for proxy in trace.inputs}
        read = [*(proxy for bsym in trace.bound_symbols for proxy in bsym.inputs), *trace.outputs]
        numbers |= {proxy.name: proxy for proxy in read if isinstance(proxy, NumberProxy) and proxy.name not in names}
    return tuple(numbers.values())


def with_number_inputs(trace: Trace, index: int | None = None) -> Trace:
    """Return the trace with all symbolic numbers that it reads added to its inputs.

    The numbers are inserted before the input at `index`, or after all other inputs if `index` is None.
    """
    numbers = numbers_of(trace)
    if not numbers:
        return trace
    index = len(trace.inputs) if index is None else index
    return replace(trace, inputs=(*trace.inputs[:index], *numbers, *trace.inputs[index:]))
