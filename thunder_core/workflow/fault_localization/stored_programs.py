"""Stored programs: the text in an artifact is run line by line and compared with the same program compiled now."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates, no_exact_value
from thunder_core.backend.claiming.comparison import different_at, largest_difference, metadata_difference
from thunder_core.backend.claiming.copies import copy_values
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.boundary.epilogue import DIFFERENT, OTHER_VALUES, describe, is_close
from thunder_core.workflow.fault_localization.boundary.outside import CallResult, Preparation, run_program
from thunder_core.workflow.fault_localization.probes.calls import SubjectCall
from thunder_core.workflow.fault_localization.probes.unpacking import wrongly_unpacked
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.rounding import rounding_difference
from thunder_core.workflow.validation.inside import Fault
from thunder_core.workflow.validation.leaves import ROOT, Leaves

COMPUTATION, BACKWARD = "computation", "backward"
GENERATED = "<thunder {} "  # the prefix of the file names of generated functions
RESULT = "result "  # the prefix of the names of returned values
MORE_RESULTS = "returns {} tensors, but {} in the program compiled now"


@dataclass(frozen=True)
class NamedTensor:
    """A tensor that a line of a function binds to a name: the line's number, the name, and a copy of the value."""

    line: int
    name: str
    value: torch.Tensor


def bindings_of(run: Callable[[], object], function: str) -> list[NamedTensor]:
    """Run a function, and return the tensors that the named generated function binds at its first call, in order.

    Returned values have the names `result 0`, `result 1` and so on.
    """
    watch = LineWatch(function)
    before = sys.gettrace()
    sys.settrace(watch.at_call)
    try:
        run()
    finally:
        sys.settrace(before)
    return watch.bindings


class LineWatch:
    """A Python trace function that records the tensors that the lines of one function bind to names."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.bindings: list[NamedTensor] = []
        self._frame: FrameType | None = None
        self._line = 0
        self._held: dict[str, Any] = {}

    def at_call(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002
        """Watch the first call of the function, and no other call."""
        is_generated = frame.f_code.co_filename.startswith(GENERATED.format(self.function))
        if self._frame is not None or frame.f_code.co_name != self.function or not is_generated:
            return None
        self._frame, self._held = frame, dict(frame.f_locals)
        return self.at_line

    def at_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Record the bindings of the previous line."""
        for name, value in frame.f_locals.items():
            if isinstance(value, torch.Tensor) and self._held.get(name) is not value:
                self._held[name] = value
                self._note(name, value)
        if event == "return":
            self._note_returned(argument)
        self._line = frame.f_lineno
        return self.at_line

    def _note(self, name: str, value: torch.Tensor) -> None:
        if value.layout is torch.strided:
            self.bindings.append(NamedTensor(self._line, name, value.detach().clone()))

    def _note_returned(self, returned: object) -> None:
        results = returned if isinstance(returned, tuple) else (returned,)
        for place, value in enumerate(results):
            if isinstance(value, torch.Tensor):
                self._note(f"{RESULT}{place}", value)


def wrong_stored(stored: Program, compiled: Program, call: SubjectCall) -> Iterator[Fault]:
    """Yield the fault of a stored program whose unpacking, computation or results differ from the program compiled now.

    Both programs must accept `call`.
    """
    with call.undone():
        args, kwargs = call.own_arguments()
        inputs, _ = stored.prepare(call.subject, args, kwargs)
        roots = {"module": call.subject, "args": args, "kwargs": kwargs}
        unpacked = wrongly_unpacked(compiled.traces(COMPUTATION)[0], inputs, roots, stored.last("prologue"))
        fault = next(unpacked, None)
    if fault is None:
        with call.undone():
            prepared, _ = compiled.prepare(call.subject, *call.own_arguments())
            with torch.no_grad():
                fault = first_wrong_stored_line(stored, compiled, prepared)
    fault = fault or wrong_stored_epilogue(stored, compiled, call)
    yield from [] if fault is None else [fault.model_copy(update={"kind": "stored"})]


def first_wrong_stored_line(stored: Program, compiled: Program, inputs: tuple[Any, ...]) -> Fault | None:
    """Return the first line of a stored computation whose result differs from the same program compiled now.

    `inputs` are the prologue's results for the computation; both programs run on copies.
    """
    named = inputs_by_name(compiled.last(COMPUTATION), inputs)
    states = RandomStates.now(named)

    def run_of(program: Program) -> list[NamedTensor]:
        states.restore()
        return bindings_of(lambda: program.compute(tuple(copy_values(named).values())), COMPUTATION)

    theirs, ours = run_of(compiled), run_of(stored)
    return first_wrong_binding(ours, theirs, stored.source(COMPUTATION).text, compiled.last(COMPUTATION))


def wrong_stored_backward(
    stored: Program, compiled: Program, call: SubjectCall, step: Callable[[Program], Callable[[], object]]
) -> Fault | None:
    """Return the first wrong line of a stored backward; `step` makes a step of training for a program."""
    states = RandomStates.now(dict(call.kwargs))

    def run_of(program: Program) -> list[NamedTensor]:
        states.restore()
        with call.undone():
            return bindings_of(step(program), BACKWARD)

    theirs, ours, text = run_of(compiled), run_of(stored), stored.stages_of(BACKWARD)
    if not (ours and theirs and text):
        return None
    return first_wrong_binding(ours, theirs, str(text[-1].trace), compiled.stages_of(BACKWARD)[-1].trace)


def first_wrong_binding(
    ours: Sequence[NamedTensor], theirs: Sequence[NamedTensor], text: str, compiled: Trace
) -> Fault | None:
    """Return the fault of the first line of a text that binds a name to another value than the program compiled now.

    Names that only one of the programs has are skipped. Values that depend on them have names, too, and results have
    positions.
    """
    known: dict[tuple[str, int], torch.Tensor] = dict(numbered_bindings(theirs))
    latest = {binding.name: binding.value for binding in theirs}
    for (name, number), binding in zip((key for key, _ in numbered_bindings(ours)), ours, strict=True):
        expected = known.get((name, number), latest.get(name))
        difference = None if expected is None else difference_of(binding, expected)
        if difference is not None:
            return stored_fault(binding, *difference, text, compiled)
    counts = [sum(binding.name.startswith(RESULT) for binding in run) for run in (ours, theirs)]
    if counts[0] != counts[1]:
        return stored_fault(ours[-1], MORE_RESULTS.format(*counts), 0.0, text, compiled)
    return None


def numbered_bindings(bindings: Sequence[NamedTensor]) -> Iterator[tuple[tuple[str, int], torch.Tensor]]:
    """Yield the values of bindings with their names and the number of earlier bindings of the same name."""
    counts = Counter[str]()
    for binding in bindings:
        yield (binding.name, counts[binding.name]), binding.value
        counts[binding.name] += 1


def difference_of(binding: NamedTensor, expected: torch.Tensor) -> tuple[str, float] | None:
    """Return the difference of two values in words, and its size; None if it is only rounding.

    Values of one name with different metadata are different values, because an earlier version of Thunder used other
    names.
    """
    mine = binding.value
    metadata = metadata_difference(mine, expected)
    if metadata is not None:
        return (metadata.what, 0.0) if binding.name.startswith(RESULT) else None
    if rounding_difference(mine, expected, no_exact_value).difference is None:
        return None
    difference = different_at(mine, expected, largest_difference(mine, expected))
    return difference.what, difference.largest


def stored_fault(binding: NamedTensor, phrase: str, largest: float, text: str, compiled: Trace) -> Fault:
    """Return the fault of a line of a stored text."""
    lines = text.splitlines()
    line = lines[binding.line - 1].partition("  #")[0].strip() if 0 < binding.line <= len(lines) else binding.name
    bsym = maker_of(binding.name, compiled)
    return Fault(
        kind="stored",
        by="thunder" if bsym is None or not bsym.executor else bsym.executor,
        trace=compiled.name,
        line=line,
        result=binding.name,
        difference=as_compiled(f"`{binding.name}` {phrase}"),
        error=largest,
        module="" if bsym is None else bsym.module,
        source="" if bsym is None else str(bsym.source or ""),
    )


def maker_of(name: str, trace: Trace) -> BoundSymbol | None:
    """Return the bound symbol of a trace that defines a name; None if there is none."""
    return next((bsym for bsym in trace.bound_symbols if any(proxy.name == name for proxy in bsym.defines)), None)


def wrong_stored_epilogue(stored: Program, compiled: Program, call: SubjectCall) -> Fault | None:
    """Return the fault of a stored epilogue whose results or state differ from the program compiled now, or None."""
    states = RandomStates.now(dict(call.kwargs))
    theirs, ours = (outcome_of(program, call, states) for program in (compiled, stored))
    paths = {**ours.changed, **theirs.changed}
    mine, right = (result.observed.with_state_at(paths).leaves for result in (ours, theirs))
    difference = unlike(mine, right)
    if difference is None:
        return None
    line = stored.source("epilogue").text.rstrip().splitlines()[-1].strip()
    path, phrase = difference
    return Fault(kind="stored", by="thunder", trace="epilogue", line=line, result=path, difference=phrase)


def outcome_of(program: Program, call: SubjectCall, states: RandomStates) -> CallResult:
    """Run a program on copies of the arguments."""
    with call.undone():
        args, kwargs = arguments = call.own_arguments()
        preparation = Preparation(arguments, *program.prepare(call.subject, args, kwargs))
        states.restore()
        return run_program(program, call, preparation)[0]


def unlike(ours: Leaves, theirs: Leaves) -> tuple[str, str] | None:
    """Return the first path at which two runs differ, and the difference in words; None if they agree."""
    mine, right = describe(ours), describe(theirs)
    for path in dict.fromkeys((*right, *mine)):
        if mine.get(path) != right.get(path):
            here, there = mine.get(path, "missing"), right.get(path, "missing")
            return path or ROOT, as_compiled(DIFFERENT.format(path=path or ROOT, ours=here, theirs=there))
        if path in theirs.tensors and not is_close(ours.tensors[path], theirs.tensors[path]):
            return path, as_compiled(OTHER_VALUES.format(path))
    return None


def as_compiled(phrase: str) -> str:
    """Replace eager PyTorch by the program compiled now in a phrase."""
    return phrase.replace("in eager PyTorch", "in the program compiled now")
