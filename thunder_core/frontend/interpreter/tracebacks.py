"""Propagation of exceptions: their handlers, and tracebacks that show only the user's frames."""

import sys
from pathlib import Path
from types import CodeType, TracebackType
from typing import NoReturn

from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.table import LEAVE, RERAISE

_INTERPRETER_FOLDER = str(Path(__file__).parent)
_DRIVER_FILE = str(Path(__file__).with_name("generators.py"))


def catch(frame: Frame, error: BaseException) -> int:
    """Add a frame to an exception's traceback. Return the step that handles the exception, or LEAVE."""
    program = frame.program
    error.__traceback__ = TracebackType(
        without_own_entries(error.__traceback__),
        frame.frame_object(),
        program.offsets[frame.pc],
        program.lines[frame.pc] or frame.code.co_firstlineno,
    )
    return unwind(frame, error)


def unwind(frame: Frame, error: BaseException, position: int | None = None) -> int:
    """Cut the stack to the handler's depth and return the handler's step; LEAVE if there is no handler."""
    handler = frame.program.exception_handlers[frame.pc]
    if handler is None:
        return LEAVE
    stack = frame.stack
    del stack[handler.depth :]
    if handler.push_position:
        stack.append(frame.pc if position is None else position)
    stack.append(error)
    return handler.target


def reraise(frame: Frame, error: BaseException, position: int | None = None) -> int:
    """Raise an exception again in a frame, with traceback and context unchanged."""
    target = unwind(frame, error, position)
    if target == LEAVE:
        frame.stack.append(error)
        if position is not None:
            frame.pc = position
        return RERAISE
    return target


def raise_again(error: BaseException) -> NoReturn:
    """Raise an exception natively, with its traceback and all contexts unchanged."""
    context, traceback = error.__context__, error.__traceback__
    link = sys.exception()
    while link is not None and link.__context__ is not error:
        link = link.__context__ if link is not error else None
    try:
        raise error
    except BaseException:
        error.__context__, error.__traceback__ = context, traceback
        if link is not None:
            link.__context__ = error
        raise


def without_own_entries(entry: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the interpreter's frames. The search ends at an entry that `catch` has made."""
    entries: list[TracebackType] = []
    while entry is not None and entry.tb_frame.f_trace_lines:
        code = entry.tb_frame.f_code
        if not code.co_filename.startswith(_INTERPRETER_FOLDER):
            entries.append(entry)
        elif code.co_filename == _DRIVER_FILE and isinstance(code.co_consts[-1], CodeType):
            entries.append(_entry_of_unstarted(entry.tb_frame.f_locals["frame"]))
        entry = entry.tb_next
    for kept_entry in reversed(entries):
        if kept_entry.tb_next is not entry:
            kept_entry.tb_next = entry
        entry = kept_entry
    return entry


def traceback_below(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception without its outermost entry."""
    entry = error.__traceback__
    return None if entry is None else entry.tb_next


def _entry_of_unstarted(frame: Frame) -> TracebackType:
    """Return the entry of a generator that received an exception before it ran, in place of its driver's entry."""
    return TracebackType(None, frame.frame_object(), 0, frame.code.co_firstlineno)
