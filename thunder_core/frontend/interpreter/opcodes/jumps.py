"""Jumps.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.table import opcode


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(_frame: Frame, target: int) -> int:
    """[] -> []."""
    return target


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def pop_jump_if_true(frame: Frame, target: int) -> int | None:
    """[value] -> []; jump if it is true."""
    value = frame.stack.pop()
    if value is True:
        return target
    if value is False or value is None:
        return None
    return target if operators.truth(frame.machine, value) else None


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def pop_jump_if_false(frame: Frame, target: int) -> int | None:
    """[value] -> []; jump if it is false."""
    value = frame.stack.pop()
    if value is True:
        return None
    if value is False or value is None:
        return target
    return None if operators.truth(frame.machine, value) else target


@opcode("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(frame: Frame, target: int) -> int | None:
    """[value] -> [value] and jump if the value is true; otherwise []."""
    if operators.truth(frame.machine, frame.stack[-1]):
        return target
    frame.stack.pop()
    return None


@opcode("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(frame: Frame, target: int) -> int | None:
    """[value] -> [value] and jump if the value is false; otherwise []."""
    if not operators.truth(frame.machine, frame.stack[-1]):
        return target
    frame.stack.pop()
    return None


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def pop_jump_if_none(frame: Frame, target: int) -> int | None:
    """[value] -> []; jump if it is None."""
    return target if frame.stack.pop() is None else None


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(frame: Frame, target: int) -> int | None:
    """[value] -> []; jump if it is not None."""
    return target if frame.stack.pop() is not None else None
