"""Operators: binary, unary, comparisons, membership, identity, subscripts.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

import operator
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.operators import BINARY, COMPARISONS, PRIMITIVE_TYPES
from thunder_core.frontend.interpreter.program import DecodingContext
from thunder_core.frontend.interpreter.table import opcode

# Classes whose items C code reads, so that no `__getitem__` in Python has to be looked up.
_SUBSCRIPTED_IN_C = frozenset({list, tuple, dict, str, bytes})


def _binary(_context: DecodingContext, argument: int) -> Callable[[Any, Any], Any]:
    """Return the Python function for the argument of BINARY_OP."""
    return BINARY[argument]


@opcode("BINARY_OP", prepare=_binary)
def binary_op(frame: Frame, function: Callable[[Any, Any], Any]) -> None:
    """[left, right] -> [function(left, right)]."""
    stack = frame.stack
    right = stack.pop()
    left = stack[-1]
    if type(left) in PRIMITIVE_TYPES and type(right) in PRIMITIVE_TYPES:
        stack[-1] = function(left, right)
    else:
        stack[-1] = operators.binary(frame.machine, function, left, right)


def _comparison(_context: DecodingContext, argument: int) -> Callable[[Any, Any], Any]:
    """Return the Python function for the argument of COMPARE_OP."""
    return COMPARISONS[argument]


@opcode("COMPARE_OP", prepare=_comparison)
def compare_op(frame: Frame, function: Callable[[Any, Any], Any]) -> None:
    """[left, right] -> [function(left, right)]."""
    stack = frame.stack
    right = stack.pop()
    left = stack[-1]
    if type(left) in PRIMITIVE_TYPES and type(right) in PRIMITIVE_TYPES:
        stack[-1] = function(left, right)
    else:
        stack[-1] = operators.compare(frame.machine, function, left, right)


@opcode("UNARY_POSITIVE")
def unary_positive(frame: Frame, _argument: object) -> None:
    """[value] -> [+value]."""
    frame.stack[-1] = operators.unary(frame.machine, operator.pos, frame.stack[-1])


@opcode("UNARY_NEGATIVE")
def unary_negative(frame: Frame, _argument: object) -> None:
    """[value] -> [-value]."""
    frame.stack[-1] = operators.unary(frame.machine, operator.neg, frame.stack[-1])


@opcode("UNARY_INVERT")
def unary_invert(frame: Frame, _argument: object) -> None:
    """[value] -> [~value]."""
    frame.stack[-1] = operators.unary(frame.machine, operator.invert, frame.stack[-1])


@opcode("UNARY_NOT")
def unary_not(frame: Frame, _argument: object) -> None:
    """[value] -> [not value]."""
    frame.stack[-1] = not operators.truth(frame.machine, frame.stack[-1])


@opcode("IS_OP")
def is_op(frame: Frame, inverted: int) -> None:
    """[left, right] -> [left is (not) right]."""
    right = frame.stack.pop()
    left = frame.stack[-1]
    if type(left) not in operators.PRIMITIVE_TYPES and type(right) not in operators.PRIMITIVE_TYPES:
        frame.machine.announce_identity(left, right)  # an observer may guard the identity
    frame.stack[-1] = (left is right) != inverted


@opcode("CONTAINS_OP")
def contains_op(frame: Frame, inverted: int) -> None:
    """[item, container] -> [item (not) in container]."""
    container = frame.stack.pop()
    frame.stack[-1] = operators.contains(frame.machine, container, frame.stack[-1]) != inverted


@opcode("BINARY_SUBSCR")
def binary_subscr(frame: Frame, _argument: object) -> None:
    """[container, key] -> [container[key]]."""
    stack = frame.stack
    key = stack.pop()
    container = stack[-1]
    if type(container) in _SUBSCRIPTED_IN_C:
        stack[-1] = frame.machine.load_item(container, key)
    else:
        stack[-1] = operators.get_item(frame.machine, container, key)


@opcode("STORE_SUBSCR")
def store_subscr(frame: Frame, _argument: object) -> None:
    """[value, container, key] -> []; container[key] = value."""
    stack = frame.stack
    key, container, value = stack.pop(), stack.pop(), stack.pop()
    operators.set_item(frame.machine, container, key, value)


@opcode("DELETE_SUBSCR")
def delete_subscr(frame: Frame, _argument: object) -> None:
    """[container, key] -> []; del container[key]."""
    key, container = frame.stack.pop(), frame.stack.pop()
    operators.delete_item(frame.machine, container, key)
