"""The code of a branch, from the jump to the step where both arms meet, and the variables that the arms assign.

The number of a step is the index of an instruction in the decoded code. A slot is the index of a local variable in the
frame.
"""

from __future__ import annotations

import dis
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType
from typing import Any

from thunder_core.frontend.acquire.lookasides.operators.loop_bodies import FRAME_READERS
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.program import DecodedCode
from thunder_core.frontend.interpreter.table import LEAVE

NEVER_CONTINUE = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
# Instructions that an arm must not contain. `Subtraces.record` detects the other side effects of an arm.
FORBIDDEN_IN_ARMS = (
    *("STORE_GLOBAL", "STORE_DEREF", "STORE_NAME", "DELETE_GLOBAL", "DELETE_DEREF", "DELETE_NAME", "DELETE_FAST"),
    *("YIELD_VALUE", "SEND", "LOAD_LOCALS", "LIST_APPEND", "SET_ADD", "MAP_ADD"),
)
JUMPS = {*dis.hasjrel, *dis.hasjabs}


@dataclass(frozen=True)
class ArmEnd:
    """The variables and the stack of a frame at the end of an arm."""

    fast: list[Any]
    stack: list[Any]

    def is_between_statements(self, frame: Frame) -> bool:
        """Whether the arm has evaluated all its expressions, so that the stack is as before the arm."""
        return list(map(id, self.stack)) == list(map(id, frame.stack))


@dataclass(frozen=True, eq=False)
class BranchRegion:
    """The arms of a branch. After either arm, the function continues at the step `end`.

    `program` is the decoded code of the function, whose step `end` leaves the frame. `assigned` are the slots that an
    arm assigns; `live` are those of them that may be read or deleted at `end` or later.
    """

    program: DecodedCode
    end: int
    assigned: tuple[int, ...]
    live: tuple[int, ...]


def branch_regions(frame: Frame) -> tuple[BranchRegion, ...]:
    """Return the regions of the branch at a frame's current instruction, the shortest first.

    A longer region includes code after the branch. The result is empty if the arms do not meet, if they contain a
    forbidden instruction or are inside a `try` or `with`, or if the code belongs to no plain function or may read all
    its local variables.
    """
    memory, key = frame.program.memory, f"branch at {frame.pc}"
    if key not in memory:
        is_function = frame.names is None and not frame.program.is_resumable
        memory[key] = tuple(_find_regions(frame.code, frame.program, frame.pc)) if is_function else ()
    regions: tuple[BranchRegion, ...] = memory[key]
    return regions


def run_arm(frame: Frame, region: BranchRegion, start: int, run: Any) -> ArmEnd:
    """Run an arm of a branch from a step, on a copy of the frame, and return the variables and the stack at its end.

    `run` is the function that runs a frame. Raises `ValueError` if the arm leaves the function, such as by `return`.
    """
    copy = Frame(
        frame.machine, region.program, frame.code, frame.function, frame.globals, frame.builtins, [*frame.fast]
    )
    copy.stack = [*frame.stack]
    copy.resume_at = start
    end = run(copy)
    if not isinstance(end, ArmEnd):
        raise ValueError("an arm of the branch leaves the function")
    return end


def _leave(frame: Frame, _argument: object) -> int:
    """[...] -> [..., end of the arm]; leave the frame."""
    frame.stack.append(ArmEnd([*frame.fast], [*frame.stack]))
    return LEAVE


def _find_regions(code: CodeType, program: DecodedCode, start: int) -> Iterator[BranchRegion]:
    """Yield the regions of the branch at a step, shortest first, within one iteration of a loop around the branch.

    A region in an arm of another branch ends where that arm ends, or before.
    """
    if FRAME_READERS & {*code.co_names}:
        return
    steps = ControlFlow(code, program)
    for end in steps.meeting_points(start):
        inside = steps.reachable_steps(steps.followers[start], end)
        if start in inside or not all(map(partial(_may_be_inside, steps, inside), inside)):
            return
        assigned = sorted({slot for step in inside for slot in steps.assigned_slots(step)})
        live = tuple(slot for slot in assigned if steps.may_be_read(slot, end))
        stopping = [*program.steps]
        stopping[end] = (_leave, None)
        yield BranchRegion(replace(program, steps=stopping, cells=[], memory={}), end, tuple(assigned), live)


def _may_be_inside(steps: ControlFlow, inside: set[int], step: int) -> bool:
    """Whether a step may be in an arm.

    Returns False for forbidden instructions, for steps with an exception handler, for the end of an arm of another
    branch, and for the header of a `for` loop that begins before the branch.
    """
    name = steps.opcode_names[step]
    if steps.program.exception_handlers[step] is not None or steps.program.steps[step][0] is _leave:
        return False
    if name == "FOR_ITER":
        return step - 1 in inside and steps.opcode_names[step - 1] == "GET_ITER"
    return name not in FORBIDDEN_IN_ARMS and name not in NEVER_CONTINUE


class ControlFlow:
    """The control flow between the steps of a program, without exceptions."""

    def __init__(self, code: CodeType, program: DecodedCode) -> None:
        by_offset = {instruction.offset: instruction for instruction in dis.get_instructions(code)}
        self.program = program
        self.instructions = [by_offset[offset] for offset in program.offsets]
        self.opcode_names = [instruction.opname for instruction in self.instructions]
        self.followers = [self._next_steps(step) for step in range(len(self.instructions))]

    def _next_steps(self, step: int) -> list[int]:
        instruction = self.instructions[step]
        if instruction.opname in NEVER_CONTINUE:
            return []
        if instruction.opcode not in JUMPS:
            return [step + 1]
        target = bisect_left(self.program.offsets, instruction.argval)
        return [target] if instruction.opname in ALWAYS_JUMPS else [target, step + 1]

    def reachable_steps(self, starts: Iterable[int], end: int | None = None) -> set[int]:
        """Return `starts` and all steps that may run later, except `end` and steps that only run after `end`."""
        seen, waiting = set[int](), [*starts]
        while waiting:
            step = waiting.pop()
            if step != end and step not in seen:
                seen.add(step)
                waiting += self.followers[step]
        return seen

    def meeting_points(self, start: int) -> list[int]:
        """Return the steps that every path from `start` to a return passes, nearest first.

        These are the strict post-dominators of `start`. Paths that end in an exception do not count.
        """
        reached = sorted(self.reachable_steps([start]), reverse=True)
        # Each set of steps is an integer with one bit for each step.
        everything = sum(1 << step for step in reached)
        post_dominators = {
            step: 1 << step if self.opcode_names[step].startswith("RETURN") else everything for step in reached
        }
        changed = True
        while changed:
            changed = False
            for step in reached:
                common = everything
                for follower in self.followers[step]:
                    common &= post_dominators[follower]
                dominators = post_dominators[step] if not self.followers[step] else common | 1 << step
                changed |= dominators != post_dominators[step]
                post_dominators[step] = dominators
        strict = [step for step in reached if step != start and post_dominators[start] >> step & 1]
        return sorted(strict, key=lambda step: -post_dominators[step].bit_count())

    def assigned_slots(self, step: int) -> Sequence[int]:
        """Return the slots of the variables that a step assigns."""
        name = self.opcode_names[step]
        if "STORE_FAST" not in name:
            return ()
        slots = self._variable_slots(step)
        return slots[:1] if name == "STORE_FAST_LOAD_FAST" else slots

    def read(self, step: int) -> Sequence[int]:
        """Return the slots of the variables that a step reads or deletes."""
        name = self.opcode_names[step]
        if "LOAD_FAST" not in name and name != "DELETE_FAST":
            return ()
        slots = self._variable_slots(step)
        return slots[1:] if name == "STORE_FAST_LOAD_FAST" else slots

    def _variable_slots(self, step: int) -> list[int]:
        names = self.instructions[step].argval
        return [self.program.names.index(name) for name in (names if isinstance(names, tuple) else (names,))]

    def may_be_read(self, slot: int, start: int) -> bool:
        """Whether a variable may be read or deleted at a step or later, before it is assigned.

        The search also starts at all exception handlers, which may run at any time.
        """
        handlers = {catch.target for catch in self.program.exception_handlers if catch is not None}
        waiting, seen = [start, *handlers], set[int]()
        while waiting:
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            if slot in self.read(step):
                return True
            if slot not in self.assigned_slots(step):
                waiting += self.followers[step]
        return False
