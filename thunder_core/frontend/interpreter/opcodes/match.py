"""Pattern matching.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from thunder_core.frontend.interpreter import matching
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.table import opcode


@opcode("MATCH_MAPPING")
def match_mapping(frame: Frame, _argument: object) -> None:
    """[subject] -> [subject, whether it is a mapping]."""
    frame.stack.append(bool(type(frame.stack[-1]).__flags__ & matching.MAPPING_FLAG))


@opcode("MATCH_SEQUENCE")
def match_sequence(frame: Frame, _argument: object) -> None:
    """[subject] -> [subject, whether it is a sequence]."""
    frame.stack.append(bool(type(frame.stack[-1]).__flags__ & matching.SEQUENCE_FLAG))


@opcode("MATCH_KEYS")
def match_keys(frame: Frame, _argument: object) -> None:
    """[subject, keys] -> [subject, keys, values or None]."""
    subject, keys = frame.stack[-2:]
    frame.stack.append(matching.match_keys(frame.machine, subject, keys))


@opcode("MATCH_CLASS")
def match_class(frame: Frame, count: int) -> None:
    """[subject, class, names] -> [attributes or None]."""
    stack = frame.stack
    names, kind, subject = stack.pop(), stack.pop(), stack.pop()
    stack.append(matching.match_class(frame.machine, subject, kind, count, names))
