"""Capture copies of the inputs of programs' computations while the programs run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.runtime.generate import rewriting_traces
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.input_copies import copy_inputs
from thunder_core.workflow.fault_localization.recording import inputs_by_name


@dataclass(eq=False)
class CapturedInputs:
    """The first inputs of a program's computation, by name, and the random states at that call."""

    program: Program
    inputs: Values | None = None
    states: RandomStates = field(default_factory=lambda: RandomStates({}))

    def __call__(self, *values: Any) -> None:
        """Copy the inputs of the first call."""
        if self.inputs is None:
            traces = self.program.traces("computation")
            self.inputs = copy_inputs(inputs_by_name(traces[-1], values), *traces)
            self.states = RandomStates.now(self.inputs)


@contextmanager
def captured_inputs(programs: Iterable[Program]) -> Iterator[list[CapturedInputs]]:
    """While the block runs, capture the inputs of each program's computation at its first call."""
    captures = {id(program.last("computation")): CapturedInputs(program) for program in programs}

    def capturing(trace: Trace) -> Trace:
        capture = captures.get(id(trace))
        if capture is None:
            return trace
        first = BoundSymbol(Symbol("capture_inputs", capture), trace.inputs, {}, None, ordered=True)
        return trace.having((first, *trace.bound_symbols), made_by=trace.made_by)

    with rewriting_traces(capturing):
        yield list(captures.values())
