"""Run two traces in lockstep to compare their bits; only values that are read later stay in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.claim_checks import uninitialized_results
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.free import last_uses
from thunder_core.tracing.capture.torch_facts.settings import settings_of
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves
from thunder_core.workflow.fault_localization.input_copies import copy_inputs
from thunder_core.workflow.fault_localization.stages import is_equal
from thunder_core.workflow.fault_localization.time_limit import require_time

LARGE_VALUES = 64 << 20  # bytes of all values of a trace; larger traces run repeatedly to save memory


def has_large_values(trace: Trace) -> bool:
    """Whether the values of a trace together would take more than `LARGE_VALUES` bytes."""
    return sum(proxy.bytes for bsym in trace.bound_symbols for proxy in bsym.tensors) > LARGE_VALUES


def have_equal_bits(first: Trace, second: Trace, inputs: Values, states: RandomStates) -> bool:
    """Whether the names that two traces share, and their outputs, have the same bits.

    Also return False for traces that write to tensors or change settings, because they cannot be compared.
    """
    if not (runs_in_lockstep(first) and runs_in_lockstep(second)):
        return False
    shared = defined_names(first) & defined_names(second)
    waiting: Values = {}
    pairs = list(itertools.zip_longest(leaves(first.output), leaves(second.output)))
    unsettled = [pair for pair in pairs if not is_shared(pair, shared)]
    runs = [
        LineByLine(trace, inputs, states, [pair[n] for pair in unsettled]) for n, trace in enumerate((first, second))
    ]
    with torch.no_grad():
        for name, value in in_turn(*runs):
            if name not in shared:
                continue
            if name not in waiting:
                waiting[name] = value
            elif not is_equal(waiting.pop(name), value):
                return False
    outputs = (run.outputs() for run in runs)
    return all(itertools.starmap(is_equal, zip(*outputs, strict=True)))


def runs_in_lockstep(trace: Trace) -> bool:
    """Whether the lines of a trace can alternate with those of another trace: no line writes to tensors or settings."""
    return not any(bsym.mutates for bsym in trace.bound_symbols) and not settings_of(trace.bound_symbols)


def is_shared(pair: tuple[Any, Any], shared: set[str]) -> bool:
    """Whether both outputs of a pair have the same name; such outputs are compared at their definition."""
    names = {getattr(output, "name", None) for output in pair}
    return len(names) == 1 and names <= shared


def defined_names(trace: Trace) -> set[str]:
    """Return the names that a trace defines, except names of uninitialized tensors."""
    uninitialized = {
        name for bsym in trace.bound_symbols for name in uninitialized_results(bsym, (bsym, *bsym.subsymbols))
    }
    return {proxy.name for bsym in trace.bound_symbols for proxy in bsym.defines} - uninitialized


def in_turn(*runs: LineByLine) -> Iterator[tuple[str, Any]]:
    """Run one line of each run in turn, and yield the name and the value of each result."""
    for lines in itertools.zip_longest(*(run.lines() for run in runs)):
        yield from (definition for line in lines for definition in line or ())


class LineByLine:
    """A trace that runs one line at a time, with its own random states; values are dropped after their last use.

    `outputs` are the returned values to keep, by default all. Raises `OutOfTime` between lines.
    """

    def __init__(
        self, trace: Trace, inputs: Values, states: RandomStates, outputs: Sequence[Any] | None = None
    ) -> None:
        self.trace, self.inputs, self.states = trace, inputs, states
        self.values: Values = {**copy_inputs(inputs, trace), **trace.constants}
        self._outputs = tuple(leaves(trace.output)) if outputs is None else tuple(outputs)

    def lines(self) -> Iterator[list[tuple[str, Any]]]:
        """Yield the names and values that each line defines."""
        dying_names = last_uses(replace(self.trace, output=self._outputs))
        for bsym, dying in zip(self.trace.bound_symbols, dying_names, strict=True):
            require_time()
            self.states.restore()
            evaluate((bsym,), self.values)
            self.states = RandomStates.now(self.inputs)
            defined = [(proxy.name, self.values[proxy.name]) for proxy in bsym.defines]
            for proxy in dying:
                self.values.pop(proxy.name, None)
            yield defined

    def outputs(self) -> Iterator[Any]:
        """Yield the values of the outputs that are kept."""
        for leaf in self._outputs:
            yield self.values[leaf.name] if isinstance(leaf, Proxy) else leaf
