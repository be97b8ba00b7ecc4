"""Branches on tensors, such as LayerDrop: both arms are recorded, and each call takes one of them.

Both arms are recorded only if the program may not read values of tensors. A program that may read values reads the
condition instead, and each outcome has a specialization. The arms may only assign local variables, under the rules of
`torch.cond`. If an arm does anything else, the program is traced again, and refused at the condition.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from thunder_core.foundation.errors import Bug
from thunder_core.frontend.acquire.lookasides.operators.branch_regions import (
    ArmEnd,
    BranchRegion,
    branch_regions,
    run_arm,
)
from thunder_core.frontend.acquire.lookasides.operators.control_flow import are_alike, emit_branches, is_same_number
from thunder_core.frontend.acquire.run.program_state import RecordedArms
from thunder_core.frontend.acquire.subtraces import SubtraceRecording, Subtraces
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.machine import run as run_frame
from thunder_core.frontend.interpreter.native import UNBOUND
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.transform_levels import is_wrapped
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.retrace import ReadsCondition
from thunder_core.tracing.library.control_flow import cond, take_arm

CONSTANTS = (bool, int, float, str, type(None))


def branch_on_tensor(run: TracedRun, frame: Frame, condition: object, if_true: int, if_false: int) -> int | NotTaken:
    """Record the arms of a branch whose condition is a tensor; return the step where they meet.

    The arms start at the steps `if_true` and `if_false`. Returns `NOT_TAKEN` for all other branches, and for a branch
    that the next run may avoid by a detour.
    """
    if run.options.may_read_values or not isinstance(condition, torch.Tensor) or is_wrapped(condition):
        return NOT_TAKEN
    request = ReadsCondition(frame.code, frame.program.offsets[frame.pc])
    if request in run.options.read_conditions:
        return NOT_TAKEN
    if run.options.detours.further() is not None and not is_random(run, condition):
        return NOT_TAKEN
    if not (regions := branch_regions(frame)):
        return NOT_TAKEN
    try:
        for region in regions:
            arms = record(run, frame, condition, region, {"true_arm": if_true, "false_arm": if_false})
            if arms is not None:
                run.calls.recorded_arms.append(RecordedArms(request, *arms))
                return region.end
    except Bug:
        raise
    except Exception as error:
        raise run.retrace(request) from error
    raise run.retrace(request)


def is_random(run: TracedRun, condition: torch.Tensor) -> bool:
    """Whether a tensor is computed from random numbers that the program draws, and from no input or written tensor."""
    makers = {output.name: bsym for bsym in run.recorder.bound_symbols for output in bsym.defines}
    waiting, has_drawn = [run.recorder.proxy_of(condition).name], False
    while waiting:
        bsym = makers.get(waiting.pop())
        if bsym is None or bsym.mutates:
            return False
        has_drawn |= bsym.ordered
        waiting += [read.name for read in bsym.inputs]
    return has_drawn


def record(
    run: TracedRun, frame: Frame, condition: torch.Tensor, region: BranchRegion, starts: Mapping[str, int]
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]] | None:
    """Record the arms of a branch. If both assign alike values, assign the results to the frame's variables.

    Returns the tensors that an arm copied, and the results. Returns None if the arms assign different Python values, or
    end within an expression. The caller then tries a longer region, which includes the code that uses the values.
    """
    subtraces = Subtraces(run, "if")
    # `Subtraces.record` refuses changes of objects that this partial refers to.
    referrer = functools.partial(len, *frame.fast, *frame.stack)
    values: list[list[Any]] = []
    ends: list[ArmEnd] = []
    copied: list[torch.Tensor] = []

    def clone_if_local(value: object) -> Any:
        """Return a clone of a tensor that was a local variable before the arm; return other values as they are."""
        if not isinstance(value, torch.Tensor) or all(value is not local for local in frame.fast):
            return value
        if value.requires_grad and not torch.is_grad_enabled():
            raise ValueError("autograd would lose a tensor that an arm leaves unchanged")
        copied.append(value)
        return run.machine.call(torch.Tensor.clone, value)

    def results_of(start: int) -> Sequence[torch.Tensor]:
        ends.append(run_arm(frame, region, start, run_frame))
        values.append([clone_if_local(ends[-1].fast[slot]) for slot in region.live])
        return [value for value in values[-1] if isinstance(value, torch.Tensor)]

    arms = {
        name: subtraces.record(referrer, functools.partial(results_of, start), ()) for name, start in starts.items()
    }
    if not all(end.is_between_statements(frame) for end in ends) or not are_alike_values(*values):
        return None
    require_alike_tensors(subtraces, *values)
    operator = cond if give_equal_gradients(subtraces, arms.values()) else take_arm
    tensors = emit_branches(subtraces, operator, condition, arms)
    assign(frame, region, values[0], tensors)
    return tuple(copied), tuple(tensors)


def give_equal_gradients(subtraces: Subtraces, arms: Iterable[SubtraceRecording]) -> bool:
    """Whether the same tensors get a gradient from both arms, so that `cond` has the gradients of the Python branch.

    `cond` has a derivative, but it gives zeros to a tensor that one arm does not read, where Python gives no gradient.
    """
    true_arm, false_arm = (differentiated_operands(subtraces, arm) for arm in arms)
    return true_arm is not None and true_arm == false_arm


def differentiated_operands(subtraces: Subtraces, arm: SubtraceRecording) -> frozenset[str] | None:
    """Return the names of the operands that require a gradient, if each floating-point result depends on all of them.

    Return None otherwise.
    """
    tensor_named, is_recorded = subtraces.recorder.tensors.tensor_named, torch.is_grad_enabled()

    def is_tracked(proxy: Proxy) -> bool:
        tensor = tensor_named(proxy.name) if isinstance(proxy, TensorProxy) else None
        return is_recorded and tensor is not None and tensor.requires_grad

    operands = {proxy.name for proxy in subtraces.operands([arm], ()) if is_tracked(proxy)}
    reached = {name: {name} for name in operands}  # by tensor: the operands that get a gradient from it
    for bsym in arm.bound_symbols:
        origins = set().union(*(reached.get(proxy.name, ()) for proxy in bsym.inputs))
        reached.update({proxy.name: origins for proxy in bsym.defines if is_tracked(proxy)})
    floating = [result for result in arm.results if result.is_floating_point() or result.is_complex()]
    names = [subtraces.recorder.proxy_of(result).name for result in floating]
    return frozenset(operands) if all(reached.get(name, set()) == operands for name in names) else None


def assign(frame: Frame, region: BranchRegion, values: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    """Assign the values of an arm to a frame's live variables, with `tensors` in place of the arm's own tensors."""
    results = iter(tensors)
    for slot in region.assigned:
        frame.fast[slot] = UNBOUND
    for slot, value in zip(region.live, values, strict=True):
        frame.fast[slot] = next(results) if isinstance(value, torch.Tensor) else value


def are_alike_values(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether both arms assign tensors to the same variables, at least one, and equal values to all other variables."""
    if not any(isinstance(value, torch.Tensor) for value in left):
        return False
    for value, right_value in zip(left, right, strict=True):
        both = isinstance(value, torch.Tensor) and isinstance(right_value, torch.Tensor)
        equal = value is right_value or (type(value) in CONSTANTS and is_same_number(value, right_value))
        if not both and not equal:
            return False
    return True


def require_alike_tensors(subtraces: Subtraces, left: Sequence[Any], right: Sequence[Any]) -> None:
    """Raise `ValueError` unless the arms assign tensors with the same metadata; both or none require a gradient."""
    pairs = [pair for pair in zip(left, right, strict=True) if isinstance(pair[0], torch.Tensor)]
    if not are_alike(subtraces, [value for value, _ in pairs], [right_value for _, right_value in pairs]):
        raise ValueError("the arms of the branch assign different tensors")
    fakes = [[subtraces.recorder.tensors.fake(value) for value in pair] for pair in pairs]
    if torch.is_grad_enabled() and any(fake.requires_grad is not other.requires_grad for fake, other in fakes):
        raise ValueError("only one arm of the branch assigns a tensor that requires a gradient")
