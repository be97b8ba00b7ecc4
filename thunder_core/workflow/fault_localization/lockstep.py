"""Compare two traces in lockstep: whether they compute the same bits, holding only values that are read later."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.claim_checks import uninitialized
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.free import last_uses
from thunder_core.tracing.capture.torch_facts.settings import settings_of
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves
from thunder_core.workflow.fault_localization.own_inputs import own_inputs
from thunder_core.workflow.fault_localization.stages import is_equal

LARGE_VALUES = 64 << 20  # bytes of all values of a trace; larger traces run more than once to save memory


def has_large_values(trace: Trace) -> bool:
    """Whether the values of a trace, all at once, would take more than `LARGE_VALUES` bytes."""
    return sum(proxy.bytes for bsym in trace.bound_symbols for proxy in bsym.tensors) > LARGE_VALUES


def compute_the_same(one: Trace, other: Trace, inputs: Values, states: RandomStates) -> bool:
    """Whether the names that two traces share, and their outputs, have the same bits.

    False also where that is not found out: the traces write to tensors or change settings.
    """
    bsyms = (*one.bound_symbols, *other.bound_symbols)
    if any(bsym.mutates for bsym in bsyms) or settings_of(bsyms):
        return False
    shared = defined_names(one) & defined_names(other)
    waiting: Values = {}
    runs = [LineByLine(trace, inputs, states) for trace in (one, other)]
    with torch.no_grad():
        for name, value in in_turn(*runs):
            if name not in shared:
                continue
            if name not in waiting:
                waiting[name] = value
            elif not is_equal(waiting.pop(name), value):
                return False
    outputs = [list(run.outputs()) for run in runs]
    return len(outputs[0]) == len(outputs[1]) and all(itertools.starmap(is_equal, zip(*outputs, strict=True)))


def defined_names(trace: Trace) -> set[str]:
    """The names that the lines of a trace define, but for memory that nothing is written to."""
    without_values = {name for bsym in trace.bound_symbols for name in uninitialized(bsym, (bsym, *bsym.subsymbols))}
    return {proxy.name for bsym in trace.bound_symbols for proxy in bsym.defines} - without_values


def in_turn(*runs: LineByLine) -> Iterator[tuple[str, Any]]:
    """The definitions of runs, a line of each after the other."""
    for lines in itertools.zip_longest(*(run.lines() for run in runs)):
        yield from (definition for line in lines for definition in line or ())


class LineByLine:
    """A trace that runs a line at a time, from random states of its own; values are dropped after their last use."""

    def __init__(self, trace: Trace, inputs: Values, states: RandomStates) -> None:
        self.trace, self.inputs, self.states = trace, inputs, states
        self.values: Values = {**own_inputs(inputs, trace), **trace.constants}

    def lines(self) -> Iterator[list[tuple[str, Any]]]:
        """The names and values that each line defines."""
        for bsym, dying in zip(self.trace.bound_symbols, last_uses(self.trace), strict=True):
            self.states.restore()
            evaluate((bsym,), self.values)
            self.states = RandomStates.now(self.inputs)
            defined = [(proxy.name, self.values[proxy.name]) for proxy in bsym.defines]
            for proxy in dying:
                self.values.pop(proxy.name, None)
            yield defined

    def outputs(self) -> Iterator[Any]:
        """The values that the trace returns."""
        for leaf in leaves(self.trace.output):
            yield self.values[leaf.name] if isinstance(leaf, Proxy) else leaf
