"""Opcodes of Python 3.12: new opcodes, and opcodes whose stack effect or argument it changed.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from collections.abc import Callable
from typing import Any

from thunder_core.frontend.interpreter import imports, intrinsics, operators
from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.generators import delegate
from thunder_core.frontend.interpreter.native import UNBOUND
from thunder_core.frontend.interpreter.opcodes.exceptions import prep_reraise_star
from thunder_core.frontend.interpreter.opcodes.iteration import for_iter
from thunder_core.frontend.interpreter.opcodes.names import load_fast, load_from_namespace, load_outside_namespace
from thunder_core.frontend.interpreter.opcodes.operate import compare_op
from thunder_core.frontend.interpreter.opcodes.stack import print_expr
from thunder_core.frontend.interpreter.opcodes.suspension import async_gen_wrap
from thunder_core.frontend.interpreter.operators import COMPARISONS
from thunder_core.frontend.interpreter.program import DecodingContext
from thunder_core.frontend.interpreter.table import LEAVE, opcode
from thunder_core.frontend.interpreter.tracebacks import reraise

_3_12, _3_13 = (3, 12), (3, 13)


def _comparison(_context: DecodingContext, argument: int) -> Callable[[Any, Any], Any]:
    """Return the comparison function. The argument has its number above the lowest four bits."""
    return COMPARISONS[argument >> 4]


def _after_end_for(context: DecodingContext, _argument: int) -> int:
    """Return the step at which an exhausted loop continues: after the END_FOR at the jump target."""
    return context.target() + 1


opcode("COMPARE_OP", since=_3_12, prepare=_comparison)(compare_op)
opcode("FOR_ITER", since=_3_12, prepare=_after_end_for)(for_iter)
opcode("LOAD_FAST_CHECK", since=_3_12)(load_fast)


@opcode("END_FOR", since=_3_12, until=_3_13)
def end_for(frame: Frame, _argument: object) -> None:
    """[iterator, value] -> []."""
    del frame.stack[-2:]


@opcode("RETURN_CONST", since=_3_12)
def return_const(frame: Frame, value: object) -> int:
    """[] -> [value]; the frame returns the value, a constant."""
    frame.stack.append(value)
    return LEAVE


@opcode("LOAD_FAST_AND_CLEAR", since=_3_12)
def load_fast_and_clear(frame: Frame, slot: int) -> None:
    """[] -> [local or UNBOUND]; the local is unbound."""
    frame.stack.append(frame.fast[slot])
    frame.fast[slot] = UNBOUND


@opcode("LOAD_LOCALS", since=_3_12)
def load_locals(frame: Frame, _argument: object) -> None:
    """[] -> [the namespace]."""
    if frame.names is None:
        raise SystemError("no locals")
    frame.stack.append(frame.names)


@opcode("LOAD_FROM_DICT_OR_GLOBALS", since=_3_12)
def load_from_dict_or_globals(frame: Frame, name: str) -> None:
    """[namespace] -> [value of the name in the namespace, otherwise the global or builtin]."""
    value = load_from_namespace(frame, frame.stack.pop(), name)
    frame.stack.append(load_outside_namespace(frame, name) if value is NULL else value)


@opcode("LOAD_FROM_DICT_OR_DEREF", since=_3_12)
def load_from_dict_or_deref(frame: Frame, slot: int) -> None:
    """[namespace] -> [value of the name in the namespace, otherwise the contents of the cell]."""
    value = load_from_namespace(frame, frame.stack.pop(), frame.program.names[slot])
    frame.stack.append(frame.machine.load_deref(frame, slot) if value is NULL else value)


def _attribute(context: DecodingContext, argument: int) -> tuple[str, bool]:
    """Return the name, and whether the attribute is called."""
    return context.code.co_names[argument >> 1], bool(argument & 1)


@opcode("LOAD_ATTR", since=_3_12, prepare=_attribute)
def load_attr(frame: Frame, argument: tuple[str, bool]) -> None:
    """[owner] -> [(NULL), owner.name]."""
    name, called = argument
    stack = frame.stack
    value = frame.machine.load_attr(stack[-1], name)
    if called:
        stack[-1] = NULL
        stack.append(value)
    else:
        stack[-1] = value


def _super_attribute(context: DecodingContext, argument: int) -> tuple[str, bool, bool]:
    """Return the name, whether the attribute is called, and whether `super` has arguments."""
    return context.code.co_names[argument >> 2], bool(argument & 1), bool(argument & 2)


@opcode("LOAD_SUPER_ATTR", since=_3_12, prepare=_super_attribute)
def load_super_attr(frame: Frame, argument: tuple[str, bool, bool]) -> None:
    """[super, class, instance] -> [(NULL), super(class, instance).name]."""
    name, called, has_arguments = argument
    stack = frame.stack
    value = load_from_super(frame, name, has_arguments)
    if called:
        stack.append(NULL)
    stack.append(value)


def load_from_super(frame: Frame, name: str, has_arguments: bool) -> Any:
    """Pop `super`, class and instance, and return the attribute of `super(class, instance)` or `super()`."""
    instance, kind, super_class = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
    machine = frame.machine
    return machine.load_attr(machine.invoke(super_class, (kind, instance) if has_arguments else (), {}), name)


@opcode("BINARY_SLICE", since=_3_12)
def binary_slice(frame: Frame, _argument: object) -> None:
    """[container, start, stop] -> [container[start:stop]]."""
    stop, start, container = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
    frame.stack.append(operators.get_item(frame.machine, container, slice(start, stop)))


@opcode("STORE_SLICE", since=_3_12)
def store_slice(frame: Frame, _argument: object) -> None:
    """[value, container, start, stop] -> []; container[start:stop] = value."""
    stop, start, container = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
    operators.set_item(frame.machine, container, slice(start, stop), frame.stack.pop())


@opcode("SEND", since=_3_12)
def send(frame: Frame, target: int) -> int:
    """[iterator, None] -> [iterator, result of the iterator]; the frame yields what the iterator yields."""
    stack = frame.stack
    stack[-1] = stack[-2]  # `delegate` runs the iterator at the top of the stack, which its result replaces
    delegate(frame, stack[-1], target)
    return LEAVE


@opcode("END_SEND", since=_3_12)
def end_send(frame: Frame, _argument: object) -> None:
    """[iterator, result] -> [result]."""
    del frame.stack[-2]


@opcode("CLEANUP_THROW", since=_3_12)
def cleanup_throw(frame: Frame, _argument: object) -> int | None:
    """[iterator, value, error] -> [None, result] if the iterator has ended, otherwise raise the error again."""
    error = frame.stack.pop()
    if not isinstance(error, StopIteration):
        return reraise(frame, error)
    frame.stack[-2:] = [None, error.value]
    return None


def _import_star(frame: Frame, _argument: object) -> None:
    """[module] -> [None]; the public names of the module are bound."""
    imports.import_star(frame, frame.stack.pop())
    frame.stack.append(None)


def _print(frame: Frame, argument: object) -> None:
    """[value] -> [None]; print the value as the interactive prompt does."""
    print_expr(frame, argument)
    frame.stack.append(None)


def _unary_positive(frame: Frame, _argument: object) -> None:
    """[value] -> [+value]."""
    frame.stack[-1] = operators.unary(frame.machine, intrinsics.POSITIVE, frame.stack[-1])


def _stop_iteration_error(frame: Frame, _argument: object) -> None:
    """[error] -> [RuntimeError if the error would end the generator, otherwise the error]."""
    frame.stack[-1] = intrinsics.stop_iteration_error(frame.code, frame.stack[-1])


# The intrinsic functions that are not run in C, by their numbers in CPython (pycore_intrinsics.h).
_INTERPRETED: dict[int, Callable[[Frame, Any], int | None]] = {
    1: _print, 2: _import_star, 3: _stop_iteration_error, 4: async_gen_wrap, 5: _unary_positive,
}  # fmt: skip
PREP_RERAISE_STAR = 1  # among the intrinsic functions of two arguments


@opcode("CALL_INTRINSIC_1", since=_3_12)
def call_intrinsic_1(frame: Frame, number: int) -> None:
    """[value] -> [result of the intrinsic function]."""
    interpreted = _INTERPRETED.get(number)
    if interpreted is not None:
        interpreted(frame, number)
    else:
        frame.stack[-1] = intrinsics.unary(number)(frame.stack[-1])


@opcode("CALL_INTRINSIC_2", since=_3_12)
def call_intrinsic_2(frame: Frame, number: int) -> None:
    """[first, second] -> [result of the intrinsic function]."""
    if number == PREP_RERAISE_STAR:
        prep_reraise_star(frame, number)
    else:
        second = frame.stack.pop()
        frame.stack[-1] = intrinsics.binary(number)(frame.stack[-1], second)
