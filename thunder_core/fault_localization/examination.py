"""The examination of a program: each of its stages beside the one before, and its lines beside eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core.autodiff.output_aliases import PART_VIEWS
from thunder_core.autodiff.program_derivative import ProgramDerivative
from thunder_core.claiming.check import RandomStates, Values, copied, perturb
from thunder_core.fault_localization.acquisition import RecordCalls, first_wrong_call
from thunder_core.fault_localization.claims import examine_claims
from thunder_core.fault_localization.derivatives import (
    Cotangents,
    autograd_gradients,
    gradient_fault,
    random_cotangents,
    wrong_gradient,
)
from thunder_core.fault_localization.epilogue import misplaced_results, names_of_results
from thunder_core.fault_localization.guard_probes import Call, first_unequal, wrong_guards
from thunder_core.fault_localization.judgement import OUT_OF_TIME, Deadline
from thunder_core.fault_localization.recording import Recording, inputs_by_name, record
from thunder_core.fault_localization.stages import Evaluated, changes_dtypes, first_difference
from thunder_core.fault_localization.unpacking import wrongly_unpacked
from thunder_core.ir.trace import Trace
from thunder_core.runtime.program import Program
from thunder_core.validation.comparison import buffers_kept
from thunder_core.validation.inside import CheckedLines, Fault, InsideReport, NotCompared
from thunder_core.validation.leaves import leaves_of

FREED = "free after last use"
CHANGES_DTYPES = "it gives values other dtypes, whose rounding decides"


@dataclass
class Examination:
    """An examination of one program on one input: what was found until now, and when it has to end."""

    program: Program
    deadline: Deadline
    faults: list[Fault] = field(default_factory=list)
    lines: list[CheckedLines] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)

    def report(self) -> InsideReport:
        """The findings, as plain data."""
        return InsideReport(
            lines=tuple(self.lines),
            stages=tuple(self.stages),
            faults=tuple(self.faults),
            not_compared=tuple(self.not_compared),
            seconds=self.deadline.passed,
            budget=self.deadline.seconds,
        )

    def examine_computation(self, inputs: Values, states: RandomStates) -> None:
        """Compare the stages of the computation with each other, and its claimed lines with eager PyTorch."""
        *stages, claimed = without_freed(self.program.traces("computation"))
        self.claims(claimed, stages, inputs, states)
        self.compare_stages(stages, inputs, states)

    def claims(self, claimed: Trace, stages: Sequence[Trace], inputs: Values, states: RandomStates) -> None:
        """Compare the claimed lines of a trace with eager PyTorch."""
        findings = examine_claims(claimed, unclaimed_of(stages), inputs, states, self.deadline)
        self.faults += findings.faults
        self.lines += findings.lines
        self.not_compared += findings.not_compared

    def examine_backward(self, inputs: Values, states: RandomStates, seed: int) -> None:
        """Compare the backward with autograd, its stages with each other, and its claimed lines with eager PyTorch."""
        derivative = self.program.derivative
        if not isinstance(derivative, ProgramDerivative):
            return
        if self.deadline.is_over:
            self.not_compared.append(NotCompared(what="backward", count=1, reason=OUT_OF_TIME))
            return
        derivative.complete()
        stages = self.program.stages_of("backward")
        given = stages[-1].given
        *traces, claimed = without_freed([stage.trace for stage in stages if stage.given == given])
        forward = derivative.differentiated.forward
        values = record(forward, inputs, states).final
        names = [derivative.body.output[place].name for place in derivative.differentiated.results]
        chosen = [name for name, is_given in zip(names, given, strict=True) if is_given]
        cotangents = random_cotangents(values, chosen, seed)
        values |= {f"grad_{name}": cotangent for name, cotangent in cotangents.items()}
        taken = {proxy.name: values[proxy.name] for proxy in claimed.inputs}
        self.compare_with_autograd(traces[0], taken, inputs, cotangents, states)
        self.claims(claimed, traces, taken, states)
        self.compare_stages(traces, taken, states)

    def compare_with_autograd(
        self, backward: Trace, taken: Values, inputs: Values, cotangents: Cotangents, states: RandomStates
    ) -> None:
        """Compare the gradients that a backward computes with those of autograd."""
        derivative = self.program.derivative
        assert isinstance(derivative, ProgramDerivative)
        body = derivative.body
        followed = [body.inputs[place].name for place in derivative.differentiated.requires_grad_inputs]
        expected = autograd_gradients(body, inputs, followed, cotangents, states)
        found = wrong_gradient(backward, record(backward, taken, states), expected)
        self.stages.append(backward.made_by)
        if found is not None:
            self.faults.append(gradient_fault(*found, body, backward))

    def compare_stages(self, stages: Sequence[Trace], inputs: Values, states: RandomStates) -> None:
        """Compare each stage with the one before it, by the values of names."""
        first = Evaluated(stages[0], *first_recordings(stages[0], inputs, states))
        before = first
        for stage in stages[1:]:
            if self.deadline.is_over:
                self.not_compared.append(NotCompared(what=stage.made_by, count=1, reason=OUT_OF_TIME))
                continue
            if is_same(before.trace, stage):
                continue
            recording = record(stage, inputs, states)
            after = Evaluated(stage, recording, before.exact, before.perturbed)
            if changes_dtypes(before.recording, recording):
                self.not_compared.append(NotCompared(what=stage.made_by, count=1, reason=CHANGES_DTYPES))
            else:
                self.stages.append(stage.made_by)
                fault = first_difference(before, self.joined(after, states))
                if fault is not None and not self.is_known(fault):
                    self.faults.append(fault)
            before = after

    def joined(self, evaluated: Evaluated, states: RandomStates) -> Evaluated:
        """The evaluation of a computation without the views that it returned, with the results of its tail."""
        tail = getattr(self.program.derivative, "tail", None)
        if tail is None or evaluated.trace.made_by != PART_VIEWS:
            return evaluated
        outputs = record(tail, evaluated.recording.final, states).outputs
        return replace(evaluated, recording=replace(evaluated.recording, outputs=outputs))

    def is_known(self, fault: Fault) -> bool:
        """Whether an executor's line was found to be wrong already."""
        return fault.kind == "executor" and any(one.kind == "executor" for one in self.faults)


def first_recordings(
    trace: Trace, inputs: Values, states: RandomStates
) -> tuple[Recording, Recording | None, Recording | None]:
    """The recordings of the first stage: in its own dtypes, in float64, and so from inputs that differ a little."""
    plain = record(trace, inputs, states)
    drawn = RandomStates.now(inputs)
    if not drawn.equal(states):
        return plain, None, None  # the random numbers of another dtype are others
    try:
        exact = record(trace, inputs, states, in_double=True)
        perturbed = record(trace, {name: perturb(value) for name, value in inputs.items()}, states, in_double=True)
    except (RuntimeError, TypeError, ValueError):
        return plain, None, None  # an operation that takes no float64
    return plain, exact, perturbed


def without_freed(traces: Sequence[Trace]) -> list[Trace]:
    """The stages without the last, which only says when memory is given back."""
    return [trace for trace in traces if trace.made_by != FREED]


def unclaimed_of(stages: Sequence[Trace]) -> Trace:
    """The latest stage of which no executor has claimed anything."""
    return next(trace for trace in reversed(stages) if not any(bsym.executor for bsym in trace.bound_symbols))


def is_same(before: Trace, after: Trace) -> bool:
    """Whether a stage has the bound symbols of the one before."""
    return before.bound_symbols == after.bound_symbols and before.output == after.output


def examine(
    program: Program,
    subject: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    seconds: float = 0.0,
    probe_guards: bool = True,
) -> InsideReport:
    """Examine a program on the arguments of a call that it is for, for at most so many seconds (0: for all it takes).

    Each executor's line, each transform, and the backward are compared with eager PyTorch, what the prologue unpacks
    with what origins name; then, unless there is a fault, what the program returns with what eager PyTorch does. With
    `probe_guards` calls that differ a little are tried, too. The arguments and a module's buffers are left as they are,
    and so are the random numbers. Raises what the prologue raises for arguments that the program is not for.
    """
    examination, call = Examination(program, Deadline(seconds)), Call(subject, args, kwargs)
    with outcome_undone(call):
        taken, own_kwargs = call.own_arguments()
        prepared, outside = program.prepare(subject, taken, own_kwargs)
        roots = {"module": subject, "args": taken, "kwargs": own_kwargs}
        computation, prologue = program.last("computation"), program.last("prologue")
        examination.faults += wrongly_unpacked(program.traces("computation")[0], prepared, roots, prologue)
        inputs = copied(inputs_by_name(computation, prepared))
        states = RandomStates.now(inputs)
        examination.examine_computation(inputs, states)
        examination.examine_backward(inputs, states, seed=0)
        if not examination.faults:
            states.restore()
            examination.faults += wrong_outside(program, call, prepared, outside, states)
        if probe_guards and not examination.faults:
            examination.faults += wrong_guards(program, call, examination.deadline)
    return examination.report()


@contextmanager
def outcome_undone(call: Call) -> Iterator[None]:
    """Put the buffers of a module and the random numbers back behind the block."""
    model = call.subject
    tensors = {str(place): value for place, value in enumerate(call.kwargs.values()) if isinstance(value, torch.Tensor)}
    states = RandomStates.now(tensors)
    with buffers_kept(model) if isinstance(model, torch.nn.Module) else nullcontext():
        try:
            yield
        finally:
            states.restore()


def wrong_outside(
    program: Program, call: Call, prepared: tuple[Any, ...], outside: tuple[Any, ...], states: RandomStates
) -> Iterator[Fault]:
    """The fault of what lies around the computation: it was acquired wrongly, or the epilogue hands it out wrongly."""
    computation = program.traces("computation")[0]
    inputs = copied(inputs_by_name(computation, prepared))
    results = program.compute(prepared)
    ours = leaves_of(program._epilogue(*outside, *results))
    with RecordCalls() as recorder:
        states.restore()
        args, kwargs = call.own_arguments()
        theirs = leaves_of(call.subject(*args, **kwargs))
    if not first_unequal(ours, theirs):
        return
    fault = first_wrong_call(computation, record(computation, inputs, states), recorder.calls)
    fault = fault or misplaced_results(
        program.last("epilogue"), names_of_results(computation, results), ours.tensors, theirs.tensors
    )
    if fault is not None:
        yield fault
