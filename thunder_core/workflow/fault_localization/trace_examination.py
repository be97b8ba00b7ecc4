"""The check of one trace: its stages compared with each other, and its claimed lines with eager PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from thunder_core.backend.claiming.check import RandomStates, perturb
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors.tree import message_line
from thunder_core.passes.autodiff.output_aliases import SPLIT_VIEWS
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.claims import examine_claims
from thunder_core.workflow.fault_localization.determinism import first_nondeterministic_line
from thunder_core.workflow.fault_localization.input_copies import convert_inputs
from thunder_core.workflow.fault_localization.lockstep import has_large_values, have_equal_bits
from thunder_core.workflow.fault_localization.raising import first_raising
from thunder_core.workflow.fault_localization.recording import RecordedValues, record, record_in_double
from thunder_core.workflow.fault_localization.rounding import ROUNDING, Allowance
from thunder_core.workflow.fault_localization.stages import EvaluatedStage, changes_dtypes, first_difference
from thunder_core.workflow.fault_localization.time_limit import OUT_OF_TIME, Deadline, OutOfTime, limit_time
from thunder_core.workflow.models.memory.free_memory import free_memory
from thunder_core.workflow.models.memory.release_memory import trim_memory
from thunder_core.workflow.validation.internal_check import CheckedLines, Fault, InternalCheck, NotCompared

MADE_BY_FREEING = "free after last use"
NOT_LINE_BY_LINE = "it does not run line by line ({})"
OUT_OF_MEMORY = "its values would not fit into the free memory"
COPIES = 6  # copies of all values: two stages, each in its own dtypes and in float64, which has twice the size
MEMORY_SHARE = 0.5  # the share of the free memory that may be used
CHANGES_DTYPES = "it changes dtypes, so the results differ by rounding"


@dataclass
class Examination:
    """The check of one program on one input: the results so far, and the deadline."""

    program: Program
    deadline: Deadline
    allowance: Allowance = ROUNDING
    faults: list[Fault] = field(default_factory=list)
    lines: list[CheckedLines] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    raises: bool = False
    """Whether a line of the computation raises an error, so that later lines cannot be checked."""

    def report(self) -> InternalCheck:
        """Return the results as plain data."""
        return InternalCheck(
            lines=tuple(self.lines),
            stages=tuple(self.stages),
            faults=tuple(self.faults),
            not_compared=tuple(self.not_compared),
            seconds=self.deadline.seconds_passed,
            budget=self.deadline.seconds,
        )

    @contextmanager
    def note_errors(self, what: str) -> Iterator[None]:
        """If the block raises an error, note that the part `what` was not compared, and continue."""
        try:
            yield
        except OutOfTime:
            self.not_compared.append(NotCompared(what=what, count=1, reason=OUT_OF_TIME))
        except Exception as error:  # any operation may fail to run alone
            reason = NOT_LINE_BY_LINE.format(message_line(error))
            self.not_compared.append(NotCompared(what=what, count=1, reason=reason))
        finally:
            trim_memory()

    @contextmanager
    def limit_share(self, share: float) -> Iterator[None]:
        """While the block runs, limit the check to a share of the remaining time."""
        deadline, self.deadline = self.deadline, self.deadline.part(share)
        try:
            with limit_time(self.deadline):
                yield
        finally:
            self.deadline = deadline

    def has_room(self, trace: Trace, copies: int = COPIES) -> bool:
        """Whether `copies` copies of all values of a trace fit into the free memory; add a note if they do not."""
        tensors = [proxy for bsym in trace.bound_symbols for proxy in bsym.tensors]
        device = tensors[0].device if tensors else torch.device("cpu")
        free = free_memory(device)
        fits = free is None or copies * sum(proxy.bytes for proxy in tensors) < MEMORY_SHARE * free
        if not fits:
            self.not_compared.append(NotCompared(what=f"steps of the {trace.name}", count=1, reason=OUT_OF_MEMORY))
        return fits

    def examine_computation(self, inputs: Values, states: RandomStates) -> None:
        """Compare the stages of the computation with each other, and its claimed lines with eager PyTorch."""
        stages = without_freeing(self.program.traces("computation"))
        self.examine_stages(stages, inputs, states)

    def examine_stages(self, stages: Sequence[Trace], inputs: Values, states: RandomStates) -> None:
        """Compare the claimed lines of the last stage with eager PyTorch, and the earlier stages with each other.

        If the last stage raises an error, the first raising stage has the fault. If all stages raise errors, a note
        says that they do not run line by line.
        """
        name = stages[0].name
        with self.note_errors(f"lines of the {name}"):
            self.examine_claimed(stages, inputs, states)
        if self.raises:
            return
        with self.note_errors(f"steps of the {name}"):
            self.compare_stages(stages[:-1], inputs, states)
        with self.note_errors(f"a second run of the {name}"):
            self.compare_two_runs(stages[-1], inputs, states)

    def examine_claimed(self, stages: Sequence[Trace], inputs: Values, states: RandomStates) -> None:
        """Compare the claimed lines of the last stage; raise an error that both the last and the first stage raise."""
        *unclaimed, claimed = stages
        try:
            self.compare_claims(claimed, unclaimed, inputs, states)
        except OutOfTime:
            raise
        except Exception:
            record(stages[0], inputs, states)
            fault = first_raising(stages, inputs, states)
            if fault is None:
                raise
            self.faults, self.raises = [*self.faults, fault], True

    def compare_two_runs(self, claimed: Trace, inputs: Values, states: RandomStates) -> None:
        """Run a claimed trace twice on the same inputs; the results must have the same bits."""
        if self.deadline.is_over or self.faults:
            return
        if has_large_values(claimed) and have_equal_bits(claimed, claimed, inputs, states):
            return
        if not self.has_room(claimed):
            return
        fault = first_nondeterministic_line(claimed, inputs, states)
        self.faults += [] if fault is None else [fault]

    def compare_claims(self, claimed: Trace, stages: Sequence[Trace], inputs: Values, states: RandomStates) -> None:
        """Compare the claimed lines of a trace with eager PyTorch."""
        findings = examine_claims(
            claimed, latest_unclaimed_stage(stages), inputs, states, self.deadline, self.allowance
        )
        self.faults += findings.faults
        self.lines += findings.lines
        self.not_compared += findings.not_compared

    def compare_stages(self, stages: Sequence[Trace], inputs: Values, states: RandomStates) -> None:
        """Compare each stage with the previous stage, by the values of names."""
        stages = self.stages_with_other_bits(stages, inputs, states)
        if len(stages) < 2 or not self.has_room(stages[0]):
            return
        before = evaluate_first_stage(stages[0], inputs, states)
        for stage in stages[1:]:
            if self.deadline.is_over:
                self.not_compared.append(NotCompared(what=stage.made_by, count=1, reason=OUT_OF_TIME))
                continue
            if is_same(before.trace, stage):
                continue
            recording = record(stage, inputs, states)
            after = EvaluatedStage(
                stage, recording, stage_in_double(stage, inputs, states, before), before.record_perturbed
            )
            if changes_dtypes(before.recording, recording):
                self.not_compared.append(NotCompared(what=stage.made_by, count=1, reason=CHANGES_DTYPES))
            else:
                self.stages.append(stage.made_by)
                fault = first_difference(before, self.join(after, states), self.allowance)
                if fault is not None and not self.is_known(fault):
                    self.faults.append(fault)
            before = after

    def stages_with_other_bits(self, stages: Sequence[Trace], inputs: Values, states: RandomStates) -> Sequence[Trace]:
        """If values are large, return the first stage and the stages that differ in any bit from the previous stage.

        The other stages are equal to the previous stage, so they need no recording.
        """
        if not has_large_values(stages[0]):
            return stages
        unequal = [stages[0]]
        for before, stage in itertools.pairwise(stages):
            if self.deadline.is_over:
                self.not_compared.append(NotCompared(what=stage.made_by, count=1, reason=OUT_OF_TIME))
            elif is_same(before, stage):
                continue
            elif have_equal_bits(before, stage, inputs, states):
                self.stages.append(stage.made_by)
            else:
                unequal.append(stage)
        return unequal

    def join(self, evaluated: EvaluatedStage, states: RandomStates) -> EvaluatedStage:
        """Add the tail's results to the evaluation of a computation, because the tail makes the returned views."""
        tail = getattr(self.program.derivative, "tail", None)
        if tail is None or evaluated.trace.made_by != SPLIT_VIEWS:
            return evaluated
        outputs = record(tail, evaluated.recording.final, states).outputs

        def record_joined() -> RecordedValues | None:
            body = evaluated.record_in_double()
            if body is None:
                return None
            return replace(body, outputs=record(tail, body.final, states, in_double=True).outputs)

        return replace(
            evaluated, recording=replace(evaluated.recording, outputs=outputs), record_in_double=record_joined
        )

    def is_known(self, fault: Fault) -> bool:
        """Whether the fault is an executor's, and a wrong line of an executor was already found."""
        return fault.kind == "executor" and any(earlier.kind == "executor" for earlier in self.faults)


def stage_in_double(
    stage: Trace, inputs: Values, states: RandomStates, before: EvaluatedStage
) -> Callable[[], RecordedValues | None]:
    """Return a cached function that records a stage in float64, or returns None if the earlier stage has no float64."""

    @cache
    def record_stage() -> RecordedValues | None:
        return None if before.record_in_double() is None else record_in_double(stage, inputs, states)

    return record_stage


def evaluate_first_stage(trace: Trace, inputs: Values, states: RandomStates) -> EvaluatedStage:
    """Return the first stage, evaluated in its own dtypes and in float64."""
    plain = record(trace, inputs, states)
    if not RandomStates.now(inputs).equal(states):
        return EvaluatedStage(trace, plain)  # another dtype has other random numbers

    @cache
    def record_stage() -> RecordedValues | None:
        return record_in_double(trace, inputs, states)

    @cache
    def record_perturbed() -> RecordedValues | None:
        return record_in_double(trace, convert_inputs(inputs, perturb, trace), states)

    return EvaluatedStage(trace, plain, record_stage, record_perturbed)


def without_freeing(traces: Sequence[Trace]) -> list[Trace]:
    """Return the stages without the stage that only frees memory."""
    return [trace for trace in traces if trace.made_by != MADE_BY_FREEING]


def latest_unclaimed_stage(stages: Sequence[Trace]) -> Trace:
    """Return the latest stage without claimed lines; the first stage if every stage has claimed lines."""
    unclaimed = (stage for stage in reversed(stages) if not any(bsym.executor for bsym in stage.bound_symbols))
    return next(unclaimed, stages[0])


def is_same(before: Trace, after: Trace) -> bool:
    """Whether a stage has the same bound symbols and output as the previous stage."""
    return before.bound_symbols == after.bound_symbols and before.output == after.output
