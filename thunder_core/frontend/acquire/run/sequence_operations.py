"""Operators on sequences whose lengths or items are symbolic numbers: concatenation and repetition."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber, concrete
from thunder_core.tracing.capture.symbolic.sequences import (
    SEQUENCE_CLASSES,
    SymbolicList,
    concatenate_sequences,
    plain_sequence,
    repeated_sequence,
)

ADDITIONS = (operator.add, operator.iadd)
IN_PLACE = (operator.iadd, operator.imul)
REPEATED_IN_PLACE = (list, deque, bytearray)  # classes whose instances are changed by `*=` with a number


def is_unread(value: object) -> bool:
    """Whether a value is a sequence of symbolic length whose items the program has not read one by one."""
    return type(value) in SEQUENCE_CLASSES and not getattr(value, "is_read", True)


def operation_on_sequences(run: TracedRun, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """Return the concatenation of two sequences, or a sequence that is repeated a symbolic number of times.

    Returns `NOT_TAKEN` for other functions and operands.
    """
    value = None
    if function in IN_PLACE and issubclass(type(operands[0]), (SymbolicList, *REPEATED_IN_PLACE)):
        return change_in_place(run, function, *operands)
    if function in ADDITIONS and any(map(is_unread, operands)):
        value = concatenate_sequences(*operands)
    elif function is operator.mul and any(isinstance(operand, SymbolicNumber) for operand in operands):
        items, count = operands if isinstance(operands[1], SymbolicNumber) else reversed(operands)
        value = repeated_sequence(items, count) if count.size is not None else None
    return NOT_TAKEN if value is None else value


def change_in_place(run: TracedRun, function: Callable[..., Any], sequence: Any, operand: object) -> Any:
    """Add items to a list itself, or repeat its items a symbolic number of times, and return the list.

    Returns `NOT_TAKEN` for a list of known length and an operand without a symbolic number.
    """
    if type(sequence) is SymbolicList:
        total = concatenate_sequences(sequence, operand) if function is operator.iadd else None
        if type(total) is SymbolicList:
            sequence.progressions = total.progressions
        else:
            run.machine.operate(function, sequence.real(), plain_sequence(operand))
        return sequence
    if function is operator.imul and isinstance(operand, SymbolicNumber):
        return run.machine.operate(function, sequence, concrete(operand))
    return NOT_TAKEN
