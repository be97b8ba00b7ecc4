"""Constants, and opcodes that rearrange the stack.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

import sys

from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.operators import length
from thunder_core.frontend.interpreter.table import LEAVE, opcode


@opcode("LOAD_CONST")
def load_const(frame: Frame, value: object) -> None:
    """[] -> [constant]."""
    frame.stack.append(value)


@opcode("POP_TOP", "END_FOR")
def pop_top(frame: Frame, _argument: object) -> None:
    """[value] -> []."""
    frame.stack.pop()


@opcode("PUSH_NULL")
def push_null(frame: Frame, _argument: object) -> None:
    """[] -> [NULL]."""
    frame.stack.append(NULL)


@opcode("COPY")
def copy(frame: Frame, depth: int) -> None:
    """[value, ...] -> [value, ..., value]; the value is `depth` entries from the top."""
    frame.stack.append(frame.stack[-depth])


@opcode("SWAP")
def swap(frame: Frame, depth: int) -> None:
    """[a, ..., b] -> [b, ..., a]; `a` is `depth` entries from the top."""
    stack = frame.stack
    stack[-depth], stack[-1] = stack[-1], stack[-depth]


@opcode("RETURN_VALUE")
def return_value(_frame: Frame, _argument: object) -> int:
    """[value] -> []; the frame returns the value."""
    return LEAVE


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(frame: Frame, _argument: object) -> None:
    """[] -> [AssertionError]."""
    frame.stack.append(AssertionError)


@opcode("GET_LEN")
def get_len(frame: Frame, _argument: object) -> None:
    """[value] -> [value, len(value)]."""
    frame.stack.append(length(frame.machine, frame.stack[-1]))


@opcode("PRINT_EXPR")
def print_expr(frame: Frame, _argument: object) -> None:
    """[value] -> []; print the value as the interactive prompt does."""
    show = getattr(sys, "displayhook", None)
    if show is None:
        raise RuntimeError("lost sys.displayhook")
    frame.machine.invoke(show, (frame.stack.pop(),), {})
