"""Stored programs: what an artifact holds, run line by line beside the same program when it is compiled now."""

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
from thunder_core.backend.claiming.copies import copied
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.boundary.epilogue import DIFFERENT, OTHER_VALUES, described, is_close
from thunder_core.workflow.fault_localization.boundary.outside import Preparation, Run, run_program
from thunder_core.workflow.fault_localization.probes.calls import Call
from thunder_core.workflow.fault_localization.probes.unpacking import wrongly_unpacked
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.rounding import rounding_difference
from thunder_core.workflow.validation.inside import Fault
from thunder_core.workflow.validation.leaves import ROOT, Leaves

COMPUTATION, BACKWARD = "computation", "backward"
GENERATED = "<thunder {} "  # begins the names of the files of generated functions
RESULT = "result "  # begins the names of what is returned
MORE_RESULTS = "returns {} tensors, but {} when it is compiled now"


@dataclass(frozen=True)
class Binding:
    """A tensor to which a line of a function gives a name: the line's number, and a copy of the value."""

    line: int
    name: str
    value: torch.Tensor


def bindings_of(run: Callable[[], object], function: str) -> list[Binding]:
    """The tensors to which a function of this name gives names in a run, at its first call, in order.

    What the function returns is bound to the names `result 0`, `result 1` and so on.
    """
    watch = Watch(function)
    before = sys.gettrace()
    sys.settrace(watch.at_call)
    try:
        run()
    finally:
        sys.settrace(before)
    return watch.bindings


class Watch:
    """A trace function of Python that notes the tensors to which the lines of one function give names."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.bindings: list[Binding] = []
        self._frame: FrameType | None = None
        self._line = 0
        self._held: dict[str, Any] = {}

    def at_call(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002
        """Watch the first call of the function, and no other one."""
        is_generated = frame.f_code.co_filename.startswith(GENERATED.format(self.function))
        if self._frame is not None or frame.f_code.co_name != self.function or not is_generated:
            return None
        self._frame, self._held = frame, dict(frame.f_locals)
        return self.at_line

    def at_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Note what the line that has just run has bound."""
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
            self.bindings.append(Binding(self._line, name, value.detach().clone()))

    def _note_returned(self, returned: object) -> None:
        results = returned if isinstance(returned, tuple) else (returned,)
        for place, value in enumerate(results):
            if isinstance(value, torch.Tensor):
                self._note(f"{RESULT}{place}", value)


def wrong_stored(stored: Program, compiled: Program, call: Call) -> Iterator[Fault]:
    """The fault of a stored program that unpacks, computes or hands out something else than is compiled now.

    `call` is one that both are for.
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
    """The first line of a stored computation whose result is not that of the same program compiled anew.

    `inputs` are what the prologue gives the computation; both run on copies.
    """
    named = inputs_by_name(compiled.last(COMPUTATION), inputs)
    states = RandomStates.now(named)

    def run_of(program: Program) -> list[Binding]:
        states.restore()
        return bindings_of(lambda: program.compute(tuple(copied(named).values())), COMPUTATION)

    theirs, ours = run_of(compiled), run_of(stored)
    return first_wrong_binding(ours, theirs, stored.source(COMPUTATION).text, compiled.last(COMPUTATION))


def wrong_stored_backward(
    stored: Program, compiled: Program, call: Call, step: Callable[[Program], Callable[[], object]]
) -> Fault | None:
    """The first line of a stored backward whose result is another one; `step` makes a step of training by a program."""
    states = RandomStates.now(dict(call.kwargs))

    def run_of(program: Program) -> list[Binding]:
        states.restore()
        with call.undone():
            return bindings_of(step(program), BACKWARD)

    theirs, ours, text = run_of(compiled), run_of(stored), stored.stages_of(BACKWARD)
    if not (ours and theirs and text):
        return None
    return first_wrong_binding(ours, theirs, str(text[-1].trace), compiled.stages_of(BACKWARD)[-1].trace)


def first_wrong_binding(ours: Sequence[Binding], theirs: Sequence[Binding], text: str, compiled: Trace) -> Fault | None:
    """The fault of the first line of a text that binds another value to a name than what is compiled now.

    Names that only one of both has are passed over: what is computed from them has names, too, and results have places.
    """
    known: dict[tuple[str, int], torch.Tensor] = dict(numbered(theirs))
    latest = {one.name: one.value for one in theirs}
    for (name, number), binding in zip((key for key, _ in numbered(ours)), ours, strict=True):
        expected = known.get((name, number), latest.get(name))
        told = None if expected is None else difference_of(binding, expected)
        if told is not None:
            return stored_fault(binding, *told, text, compiled)
    counts = [sum(one.name.startswith(RESULT) for one in run) for run in (ours, theirs)]
    if counts[0] != counts[1]:
        return stored_fault(ours[-1], MORE_RESULTS.format(*counts), 0.0, text, compiled)
    return None


def numbered(bindings: Sequence[Binding]) -> Iterator[tuple[tuple[str, int], torch.Tensor]]:
    """The values of bindings by their names, and how often each name was bound before."""
    counts = Counter[str]()
    for one in bindings:
        yield (one.name, counts[one.name]), one.value
        counts[one.name] += 1


def difference_of(binding: Binding, expected: torch.Tensor) -> tuple[str, float] | None:
    """The difference of two values in words, and by how much they differ; None where that is rounding.

    Values of one name that have other metadata are others: an earlier version of Thunder gave other names.
    """
    mine = binding.value
    metadata = metadata_difference(mine, expected)
    if metadata is not None:
        return (metadata.what, 0.0) if binding.name.startswith(RESULT) else None
    if rounding_difference(mine, expected, no_exact_value).difference is None:
        return None
    told = different_at(mine, expected, largest_difference(mine, expected))
    return told.what, told.largest


def stored_fault(binding: Binding, told: str, largest: float, text: str, compiled: Trace) -> Fault:
    """The fault of a line of a stored text."""
    lines = text.splitlines()
    line = lines[binding.line - 1].partition("  #")[0].strip() if 0 < binding.line <= len(lines) else binding.name
    bsym = maker_of(binding.name, compiled)
    return Fault(
        kind="stored",
        by="thunder" if bsym is None or not bsym.executor else bsym.executor,
        trace=compiled.name,
        line=line,
        result=binding.name,
        difference=as_compiled(f"`{binding.name}` {told}"),
        error=largest,
        module="" if bsym is None else bsym.module,
        source="" if bsym is None else str(bsym.source or ""),
    )


def maker_of(name: str, trace: Trace) -> BoundSymbol | None:
    """The bound symbol of a trace that defines a name."""
    return next((one for one in trace.bound_symbols if any(proxy.name == name for proxy in one.defines)), None)


def wrong_stored_epilogue(stored: Program, compiled: Program, call: Call) -> Fault | None:
    """The fault of a stored epilogue that returns, or leaves behind, something else than is compiled now."""
    states = RandomStates.now(dict(call.kwargs))
    theirs, ours = (outcome_of(program, call, states) for program in (compiled, stored))
    paths = {**ours.changed, **theirs.changed}
    mine, right = (one.observed.with_state_at(paths).leaves for one in (ours, theirs))
    told = unlike(mine, right)
    if told is None:
        return None
    line = stored.source("epilogue").text.rstrip().splitlines()[-1].strip()
    return Fault(kind="stored", by="thunder", trace="epilogue", line=line, result=told[0], difference=told[1])


def outcome_of(program: Program, call: Call, states: RandomStates) -> Run:
    """The run of a program on arguments of its own."""
    with call.undone():
        args, kwargs = arguments = call.own_arguments()
        preparation = Preparation(arguments, *program.prepare(call.subject, args, kwargs))
        states.restore()
        return run_program(program, call, preparation)[0]


def unlike(ours: Leaves, theirs: Leaves) -> tuple[str, str] | None:
    """The first path at which two runs leave something else, and what; None where they leave the same."""
    mine, right = described(ours), described(theirs)
    for path in dict.fromkeys((*right, *mine)):
        if mine.get(path) != right.get(path):
            here, there = mine.get(path, "not there"), right.get(path, "not there")
            return path or ROOT, as_compiled(DIFFERENT.format(path=path or ROOT, ours=here, theirs=there))
        if path in theirs.tensors and not is_close(ours.tensors[path], theirs.tensors[path]):
            return path, as_compiled(OTHER_VALUES.format(path))
    return None


def as_compiled(told: str) -> str:
    """A sentence about eager PyTorch as one about what is compiled now."""
    return told.replace("in eager PyTorch", "when it is compiled now")
