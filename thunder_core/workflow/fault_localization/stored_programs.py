"""Compare the programs of an artifact, line by line, with the same programs compiled now."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates, no_exact_value
from thunder_core.backend.claiming.comparison import describe_difference, largest_difference, metadata_difference
from thunder_core.backend.claiming.copies import copy_values
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.boundary.epilogue import DIFFERENT, OTHER_VALUES, describe, is_close
from thunder_core.workflow.fault_localization.boundary.outside import CallResult, PrologueResult, run_program
from thunder_core.workflow.fault_localization.probes.calls import SubjectCall
from thunder_core.workflow.fault_localization.probes.unpacking import unpacking_faults
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.rounding import rounding_difference
from thunder_core.workflow.validation.internal_check import Fault
from thunder_core.workflow.validation.leaves import ROOT, Leaves

COMPUTATION, BACKWARD = "computation", "backward"
GENERATED = "<thunder {} "  # the prefix of the file names of generated functions
RESULT = "result "  # the prefix of the names of returned values
RESULT_COUNT = "the stored function returns {} tensors, and the program compiled now returns {}"


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

    def at_call(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG002
        """Watch the first call of the function, and no other call."""
        is_generated = frame.f_code.co_filename.startswith(GENERATED.format(self.function))
        if self._frame is not None or frame.f_code.co_name != self.function or not is_generated:
            return None
        self._frame, self._held = frame, dict(frame.f_locals)
        return self.at_line

    def at_line(self, frame: FrameType, event: str, argument: object) -> Any:
        """Record the bindings of the previous line."""
        for name, value in frame.f_locals.items():
            if isinstance(value, torch.Tensor) and self._held.get(name) is not value:
                self._held[name] = value
                self._record_value(name, value)
        if event == "return":
            self._note_returned(argument)
        self._line = frame.f_lineno
        return self.at_line

    def _record_value(self, name: str, value: torch.Tensor) -> None:
        if value.layout is torch.strided:
            self.bindings.append(NamedTensor(self._line, name, value.detach().clone()))

    def _note_returned(self, returned: object) -> None:
        results = returned if isinstance(returned, tuple) else (returned,)
        for position, value in enumerate(results):
            if isinstance(value, torch.Tensor):
                self._record_value(f"{RESULT}{position}", value)


def first_stored_fault(stored: Program, compiled: Program, call: SubjectCall) -> Fault | None:
    """Return the first fault of a stored program, compared with the same program compiled now.

    The fault is an input, a line, a result or a state that differs. Both programs must accept `call`.
    """
    with call.preserve_state():
        args, kwargs = call.copy_arguments()
        inputs, _ = stored.prepare(call.subject, args, kwargs)
        roots = {"module": call.subject, "args": args, "kwargs": kwargs}
        unpacked = unpacking_faults(compiled.traces(COMPUTATION)[0], inputs, roots, stored.last("prologue"))
        fault = next(unpacked, None)
    if fault is None:
        with call.preserve_state():
            prepared, _ = compiled.prepare(call.subject, *call.copy_arguments())
            with torch.no_grad():
                fault = stored_computation_fault(stored, compiled, prepared)
    fault = fault or stored_epilogue_fault(stored, compiled, call)
    return None if fault is None else fault.model_copy(update={"kind": "stored"})


def stored_computation_fault(stored: Program, compiled: Program, inputs: tuple[Any, ...]) -> Fault | None:
    """Return the first line of a stored computation whose result differs from the same program compiled now.

    `inputs` are the inputs of the computation, from the prologue of `compiled`; each program runs on copies.
    """
    named = inputs_by_name(compiled.last(COMPUTATION), inputs)
    states = RandomStates.now(named)

    def run_of(program: Program) -> list[NamedTensor]:
        states.restore()
        return bindings_of(lambda: program.compute(tuple(copy_values(named).values())), COMPUTATION)

    compiled_bindings, stored_bindings = run_of(compiled), run_of(stored)
    source, compiled_trace = stored.source(COMPUTATION).text, compiled.last(COMPUTATION)
    return first_wrong_binding(stored_bindings, compiled_bindings, source, compiled_trace)


def stored_backward_fault(
    stored: Program, compiled: Program, call: SubjectCall, step: Callable[[Program], Callable[[], object]]
) -> Fault | None:
    """Return the first wrong line of a stored backward.

    `step(program)` returns a function that runs one training step with the program.
    """
    states = RandomStates.now(call.tensors)

    def run_of(program: Program) -> list[NamedTensor]:
        states.restore()
        with call.preserve_state():
            return bindings_of(step(program), BACKWARD)

    compiled_bindings, stored_bindings, stages = run_of(compiled), run_of(stored), stored.stages_of(BACKWARD)
    if not (stored_bindings and compiled_bindings and stages):
        return None
    compiled_trace = compiled.stages_of(BACKWARD)[-1].trace
    return first_wrong_binding(stored_bindings, compiled_bindings, str(stages[-1].trace), compiled_trace)


def first_wrong_binding(
    stored_bindings: Sequence[NamedTensor],
    compiled_bindings: Sequence[NamedTensor],
    source: str,
    compiled_trace: Trace,
) -> Fault | None:
    """Return the fault of the first line that binds a name to another value than in the program compiled now.

    Names that only one program has are skipped. A wrong result is still found, because results are compared by
    position.
    """
    compiled_values: dict[tuple[str, int], torch.Tensor] = dict(numbered_bindings(compiled_bindings))
    latest = {binding.name: binding.value for binding in compiled_bindings}
    keys = (key for key, _ in numbered_bindings(stored_bindings))
    for (name, number), binding in zip(keys, stored_bindings, strict=True):
        # if the stored program binds a name more often, its later values are compared with the last compiled value
        expected = compiled_values.get((name, number), latest.get(name))
        difference = None if expected is None else difference_of(binding, expected)
        if difference is not None:
            phrase = name_compiled_program(f"`{name}` {difference[0]}")
            return fault_of_line(name, binding.line, phrase, difference[1], source, compiled_trace)
    counts = [sum(binding.name.startswith(RESULT) for binding in run) for run in (stored_bindings, compiled_bindings)]
    if counts[0] != counts[1]:
        last = stored_bindings[-1] if stored_bindings else None
        name, line = (last.name, last.line) if last else ("", len(source.rstrip().splitlines()))
        return fault_of_line(name, line, RESULT_COUNT.format(*counts), 0.0, source, compiled_trace)
    return None


def numbered_bindings(bindings: Sequence[NamedTensor]) -> Iterator[tuple[tuple[str, int], torch.Tensor]]:
    """Yield the values of bindings with their names and the number of earlier bindings of the same name."""
    counts = Counter[str]()
    for binding in bindings:
        yield (binding.name, counts[binding.name]), binding.value
        counts[binding.name] += 1


def difference_of(binding: NamedTensor, expected: torch.Tensor) -> tuple[str, float] | None:
    """Return the difference of two values in words, and the largest absolute difference; None if it is only rounding.

    An earlier version of Thunder may have named values differently. If the metadata of a name differs, its two values
    are therefore assumed to be unrelated, and no difference is reported. Results are compared by position, so for
    results, different metadata is a difference.
    """
    stored = binding.value
    metadata = metadata_difference(stored, expected)
    if metadata is not None:
        return (metadata.what, 0.0) if binding.name.startswith(RESULT) else None
    if rounding_difference(stored, expected, no_exact_value).difference is None:
        return None
    difference = describe_difference(stored, expected, largest_difference(stored, expected))
    return difference.what, difference.largest


def fault_of_line(name: str, number: int, difference: str, largest: float, source: str, compiled_trace: Trace) -> Fault:
    """Return the fault of a line of a stored program, with the name that the line binds and the line's number."""
    lines = source.splitlines()
    line = lines[number - 1].partition("  #")[0].strip() if 0 < number <= len(lines) else name
    bsym = maker_of(name, compiled_trace)
    return Fault(
        kind="stored",
        by="thunder" if bsym is None or not bsym.executor else bsym.executor,
        trace=compiled_trace.name,
        line=line,
        result=name,
        difference=difference,
        error=largest,
        module="" if bsym is None else bsym.module,
        source="" if bsym is None else str(bsym.source or ""),
    )


def maker_of(name: str, trace: Trace) -> BoundSymbol | None:
    """Return the bound symbol of a trace that defines a name; None if there is none."""
    return next((bsym for bsym in trace.bound_symbols if any(proxy.name == name for proxy in bsym.defines)), None)


def stored_epilogue_fault(stored: Program, compiled: Program, call: SubjectCall) -> Fault | None:
    """Return the fault of a stored epilogue whose results or state differ from the program compiled now, or None."""
    states = RandomStates.now(call.tensors)
    expected_outcome, stored_outcome = (outcome_of(program, call, states) for program in (compiled, stored))
    paths = {**stored_outcome.changed, **expected_outcome.changed}
    outcomes = (stored_outcome, expected_outcome)
    difference = first_difference(*(outcome.observed.with_state_at(paths).leaves for outcome in outcomes))
    if difference is None:
        return None
    line = stored.source("epilogue").text.rstrip().splitlines()[-1].strip()
    path, phrase = difference
    return Fault(kind="stored", by="thunder", trace="epilogue", line=line, result=path, difference=phrase)


def outcome_of(program: Program, call: SubjectCall, states: RandomStates) -> CallResult:
    """Run a program on copies of the arguments, and return its results and state."""
    with call.preserve_state():
        args, kwargs = arguments = call.copy_arguments()
        preparation = PrologueResult(arguments, *program.prepare(call.subject, args, kwargs))
        states.restore()
        return run_program(program, call, preparation)[0]


def first_difference(stored: Leaves, expected: Leaves) -> tuple[str, str] | None:
    """Return the first path at which two runs differ, and the difference in words; None if they agree."""
    stored_texts, expected_texts = describe(stored), describe(expected)
    for path in dict.fromkeys((*expected_texts, *stored_texts)):
        texts = [described.get(path, "missing") for described in (stored_texts, expected_texts)]
        if stored_texts.get(path) != expected_texts.get(path):
            phrase = DIFFERENT.format(path=path or ROOT, actual=texts[0], expected=texts[1])
            return path or ROOT, name_compiled_program(phrase)
        if path in expected.tensors and not is_close(stored.tensors[path], expected.tensors[path]):
            return path, name_compiled_program(OTHER_VALUES.format(path))
    return None


def name_compiled_program(phrase: str) -> str:
    """Replace "in eager PyTorch" with "in the program compiled now"."""
    return phrase.replace("in eager PyTorch", "in the program compiled now")
