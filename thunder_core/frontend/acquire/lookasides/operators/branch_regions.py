"""The code of a branch, from the jump to the step where both arms meet, and the variables that the arms assign.

A step is the index of an instruction in the decoded program. A slot is the index of a local variable in the frame.
"""

from __future__ import annotations

import dis
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType
from typing import Any

from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.program import DecodedCode
from thunder_core.frontend.interpreter.table import LEAVE

NEVER_CONTINUE = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
# Instructions that an arm must not contain, because they do more than assign local variables.
FORBIDDEN_IN_ARMS = (
    *("STORE_GLOBAL", "STORE_DEREF", "STORE_NAME", "DELETE_GLOBAL", "DELETE_DEREF", "DELETE_NAME", "DELETE_FAST"),
    *("YIELD_VALUE", "SEND", "LOAD_LOCALS", "LIST_APPEND", "SET_ADD", "MAP_ADD"),
)
# Functions that read all local variables of a caller.
FRAME_READERS = {"locals", "vars", "eval", "exec", "dir", "_getframe"}
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
    """The arms of a branch: they meet at the step `end`, where `program` leaves the frame.

    The arms assign the slots `assigned`; the `live` slots may be read afterwards.
    """

    program: DecodedCode
    end: int
    assigned: tuple[int, ...]
    live: tuple[int, ...]


def branch_regions(frame: Frame) -> tuple[BranchRegion, ...]:
    """Return the regions of the branch at a frame's current instruction, the shortest first.

    A longer region includes code after the branch. The result is empty if the arms do not meet, or do more than assign
    variables.
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
    """Yield the regions of the branch at a step, shortest first, within one iteration of a loop around the branch."""
    if FRAME_READERS & {*code.co_names}:
        return
    steps = Steps(code, program)
    for end in steps.meeting_points(start):
        inside = steps.reached(steps.followers[start], end)
        if not all(map(partial(_may_be_inside, steps, inside), inside)):
            return
        assigned = sorted({slot for step in inside for slot in steps.stored(step)})
        live = tuple(slot for slot in assigned if steps.may_be_read(slot, end))
        stopping = [*program.steps]
        stopping[end] = (_leave, None)
        yield BranchRegion(replace(program, steps=stopping, cells=[]), end, tuple(assigned), live)


def _may_be_inside(steps: Steps, inside: set[int], step: int) -> bool:
    """Whether a step may be in an arm.

    A step in an arm only assigns variables, raises no error that the function may catch, and belongs to no loop around
    the branch.
    """
    name = steps.names[step]
    if steps.program.exception_handlers[step] is not None:
        return False
    if name == "FOR_ITER":
        return step - 1 in inside and steps.names[step - 1] == "GET_ITER"
    return name not in FORBIDDEN_IN_ARMS and name not in NEVER_CONTINUE


class Steps:
    """The control flow between the steps of a program, without exceptions."""

    def __init__(self, code: CodeType, program: DecodedCode) -> None:
        by_offset = {instruction.offset: instruction for instruction in dis.get_instructions(code)}
        self.program = program
        self.instructions = [by_offset[offset] for offset in program.offsets]
        self.names = [instruction.opname for instruction in self.instructions]
        self.followers = [self._next_steps(step) for step in range(len(self.instructions))]

    def _next_steps(self, step: int) -> list[int]:
        instruction = self.instructions[step]
        if instruction.opname in NEVER_CONTINUE:
            return []
        if instruction.opcode not in JUMPS:
            return [step + 1]
        target = bisect_left(self.program.offsets, instruction.argval)
        return [target] if instruction.opname in ALWAYS_JUMPS else [target, step + 1]

    def reached(self, starts: Iterable[int], end: int | None = None) -> set[int]:
        """Return `starts` and all steps that may run later, except `end` and steps that only run after `end`."""
        seen, waiting = set[int](), [*starts]
        while waiting:
            step = waiting.pop()
            if step != end and step not in seen:
                seen.add(step)
                waiting += self.followers[step]
        return seen

    def meeting_points(self, start: int) -> list[int]:
        """Return the strict post-dominators of a step, nearest first: each path from the step to a return has them.

        Each set of steps is an integer with one bit for each step.
        """
        reached = sorted(self.reached([start]), reverse=True)
        everything = sum(1 << step for step in reached)
        after = {step: 1 << step if self.names[step].startswith("RETURN") else everything for step in reached}
        changed = True
        while changed:
            changed = False
            for step in reached:
                common = everything
                for follower in self.followers[step]:
                    common &= after[follower]
                region = after[step] if not self.followers[step] else common | 1 << step
                changed |= region != after[step]
                after[step] = region
        strict = [step for step in reached if step != start and after[start] >> step & 1]
        return sorted(strict, key=lambda step: -after[step].bit_count())

    def stored(self, step: int) -> Sequence[int]:
        """Return the slots of the variables that a step assigns."""
        return self._variable_slots(step) if "STORE_FAST" in self.names[step] else ()

    def _variable_slots(self, step: int) -> list[int]:
        names = self.instructions[step].argval
        return [self.program.names.index(name) for name in (names if isinstance(names, tuple) else (names,))]

    def may_be_read(self, slot: int, start: int) -> bool:
        """Whether a variable may be read at a step or later, before it is assigned.

        The search also starts at all exception handlers, which may run at any time.
        """
        handlers = {catch.target for catch in self.program.exception_handlers if catch is not None}
        waiting, seen = [start, *handlers], set[int]()
        while waiting:
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            if "LOAD_FAST" in self.names[step] and slot in self._variable_slots(step):
                return True
            if slot not in self.stored(step):
                waiting += self.followers[step]
        return False
