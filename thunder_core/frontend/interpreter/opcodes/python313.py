"""The opcodes that Python 3.13 changed: the operand order of calls, fused opcodes, functions created in two steps.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from thunder_core.frontend.interpreter import operators, texts
from thunder_core.frontend.interpreter.frame import NULL, Frame
from thunder_core.frontend.interpreter.keywords import merge_keywords, unpack_arguments
from thunder_core.frontend.interpreter.namespaces import find_global, raise_unbound
from thunder_core.frontend.interpreter.native import UNBOUND
from thunder_core.frontend.interpreter.opcodes.build import CONVERSIONS
from thunder_core.frontend.interpreter.opcodes.calls import arguments_for_call, call_with
from thunder_core.frontend.interpreter.opcodes.iteration import for_iter
from thunder_core.frontend.interpreter.opcodes.names import _global
from thunder_core.frontend.interpreter.opcodes.observed import pop_jump_if_false, pop_jump_if_true
from thunder_core.frontend.interpreter.opcodes.python312 import _attribute, _super_attribute, load_from_super
from thunder_core.frontend.interpreter.operators import COMPARISONS
from thunder_core.frontend.interpreter.program import DecodingContext
from thunder_core.frontend.interpreter.table import opcode

_3_13 = (3, 13)


def _after_end_for(context: DecodingContext, _argument: int) -> int:
    """Return the step at which an exhausted loop continues: after END_FOR and POP_TOP."""
    return context.target() + 2


opcode("FOR_ITER", since=_3_13, prepare=_after_end_for)(for_iter)


def _comparison(_context: DecodingContext, argument: int) -> tuple[Callable[[Any, Any], Any], bool]:
    """Return the comparison, and whether its result is converted to a bool."""
    return COMPARISONS[argument >> 5], bool(argument & 16)


@opcode("COMPARE_OP", since=_3_13, prepare=_comparison)
def compare_op(frame: Frame, argument: tuple[Callable[[Any, Any], Any], bool]) -> None:
    """[left, right] -> [left ? right]."""
    function, to_bool = argument
    right = frame.stack.pop()
    left = frame.stack[-1]
    if type(left) in operators.PRIMITIVE_TYPES and type(right) in operators.PRIMITIVE_TYPES:
        frame.stack[-1] = function(left, right)
        return
    value = operators.compare(frame.machine, function, left, right)
    frame.stack[-1] = operators.truth(frame.machine, value) if to_bool else value


@opcode("COMPARE_OP", since=_3_13, observed=True, prepare=_comparison)
def compare_op_observed(frame: Frame, argument: tuple[Callable[[Any, Any], Any], bool]) -> None:
    """[left, right] -> [left ? right]; before a jump, the result stays as it is, so that the jump can report it."""
    function, is_condition = argument
    compare_op(frame, (function, is_condition and not _is_before_jump(frame)))


@opcode("TO_BOOL", since=_3_13, observed=True)
def to_bool_observed(frame: Frame, argument: object) -> None:
    """[value] -> [bool(value)]; before a jump, the value stays as it is, so that the jump can report it."""
    if not _is_before_jump(frame):
        to_bool(frame, argument)


def _is_before_jump(frame: Frame) -> bool:
    """Whether the next step is a conditional jump."""
    return frame.program.steps[frame.pc + 1][0] in (pop_jump_if_true, pop_jump_if_false)


@opcode("TO_BOOL", since=_3_13)
def to_bool(frame: Frame, _argument: object) -> None:
    """[value] -> [bool(value)]."""
    frame.stack[-1] = operators.truth(frame.machine, frame.stack[-1])


@opcode("LOAD_GLOBAL", since=_3_13, prepare=_global)
def load_global(frame: Frame, argument: tuple[str, bool]) -> None:
    """[] -> [global or builtin, (NULL)]."""
    name, null = argument
    frame.stack.append(find_global(frame, name))
    if null:
        frame.stack.append(NULL)


@opcode("LOAD_GLOBAL", since=_3_13, observed=True, prepare=_global)
def load_global_observed(frame: Frame, argument: tuple[str, bool]) -> None:
    """[] -> [global or builtin, (NULL)]."""
    name, null = argument
    frame.stack.append(frame.machine.load_global(frame, name, find_global))
    if null:
        frame.stack.append(NULL)


@opcode("LOAD_ATTR", since=_3_13, prepare=_attribute)
def load_attr(frame: Frame, argument: tuple[str, bool]) -> None:
    """[owner] -> [owner.name, (NULL)]."""
    name, called = argument
    frame.stack[-1] = frame.machine.load_attr(frame.stack[-1], name)
    if called:
        frame.stack.append(NULL)


@opcode("LOAD_SUPER_ATTR", since=_3_13, prepare=_super_attribute)
def load_super_attr(frame: Frame, argument: tuple[str, bool, bool]) -> None:
    """[super, class, instance] -> [super(class, instance).name, (NULL)]."""
    name, called, has_arguments = argument
    frame.stack.append(load_from_super(frame, name, has_arguments))
    if called:
        frame.stack.append(NULL)


def _pop_call(frame: Frame, count: int) -> tuple[Any, list[Any]]:
    """Pop and return a callable and its arguments, including a bound first argument."""
    stack = frame.stack
    base = len(stack) - count
    arguments = stack[base:]
    first, function = stack[base - 1], stack[base - 2]
    del stack[base - 2 :]
    if first is not NULL:
        arguments.insert(0, first)
    return function, arguments


@opcode("CALL", since=_3_13)
def call(frame: Frame, count: int) -> None:
    """[function, NULL or first argument, arguments] -> [result]."""
    function, arguments = _pop_call(frame, count)
    frame.stack.append(call_with(frame, function, arguments, {}))


@opcode("CALL_KW", since=_3_13)
def call_kw(frame: Frame, count: int) -> None:
    """[function, NULL or first argument, arguments, keyword names] -> [result]."""
    names = frame.stack.pop()
    function, arguments = _pop_call(frame, count)
    split = len(arguments) - len(names)
    keywords = dict(zip(names, arguments[split:], strict=True))
    del arguments[split:]
    frame.stack.append(call_with(frame, function, arguments, keywords))


@opcode("CALL_FUNCTION_EX", since=_3_13)
def call_function_ex(frame: Frame, flags: int) -> None:
    """[function, NULL, arguments, (keywords)] -> [result]."""
    stack, machine = frame.stack, frame.machine
    keywords = stack.pop() if flags & 1 else {}
    arguments = stack.pop()
    stack.pop()
    function = stack.pop()
    if type(keywords) is not dict:
        merged: dict[Any, Any] = {}
        merge_keywords(frame, merged, keywords, function)
        keywords = merged
    arguments = arguments_for_call(function, unpack_arguments(machine, arguments, function))
    if any(not isinstance(key, str) for key in keywords):
        raise TypeError("keywords must be strings")
    stack.append(machine.invoke(function, arguments, keywords))


@opcode("MAKE_FUNCTION", since=_3_13)
def make_function(frame: Frame, _argument: object) -> None:
    """[code] -> [function]; code with free variables stays on the stack, for SET_FUNCTION_ATTRIBUTE."""
    code = frame.stack[-1]
    if not code.co_freevars:
        frame.stack[-1] = FunctionType(code, frame.globals, code.co_name)


@opcode("DICT_MERGE", since=_3_13)
def dict_merge(frame: Frame, depth: int) -> None:
    """[function, NULL, arguments, dict, ..., mapping] -> [function, NULL, arguments, dict, ...]."""
    mapping = frame.stack.pop()
    merge_keywords(frame, frame.stack[-depth], mapping, frame.stack[-(3 + depth)])


_FUNCTION_ATTRIBUTES = {1: "__defaults__", 2: "__kwdefaults__", 4: "__annotations__"}


@opcode("SET_FUNCTION_ATTRIBUTE", since=_3_13)
def set_function_attribute(frame: Frame, flag: int) -> None:
    """[value, function] -> [function with the value]; or [closure, code] -> [function]."""
    function = frame.stack.pop()
    value = frame.stack[-1]
    if flag == 8:
        function = FunctionType(function, frame.globals, function.co_name, None, value)
    elif flag == 4 and type(value) is tuple:
        function.__annotations__ = dict(zip(value[::2], value[1::2], strict=True))
    else:
        setattr(function, _FUNCTION_ATTRIBUTES[flag], value)
    frame.stack[-1] = function


@opcode("FORMAT_SIMPLE", since=_3_13)
def format_simple(frame: Frame, _argument: object) -> None:
    """[value] -> [text]."""
    frame.stack[-1] = texts.apply_format(frame.machine, frame.stack[-1], "")


@opcode("FORMAT_WITH_SPEC", since=_3_13)
def format_with_spec(frame: Frame, _argument: object) -> None:
    """[value, specification] -> [text]."""
    specification = frame.stack.pop()
    frame.stack[-1] = texts.apply_format(frame.machine, frame.stack[-1], specification)


@opcode("CONVERT_VALUE", since=_3_13)
def convert_value(frame: Frame, kind: int) -> None:
    """[value] -> [text]."""
    frame.stack[-1] = texts.convert(frame.machine, CONVERSIONS[kind], frame.stack[-1])


@opcode("LOAD_FAST_LOAD_FAST", since=_3_13)
def load_fast_load_fast(frame: Frame, slots: int) -> None:
    """[] -> [local, local]."""
    for slot in (slots >> 4, slots & 15):
        value = frame.fast[slot]
        if value is UNBOUND:
            raise_unbound(frame, slot)
        frame.stack.append(value)


@opcode("STORE_FAST_LOAD_FAST", since=_3_13)
def store_fast_load_fast(frame: Frame, slots: int) -> None:
    """[value] -> [local]; another local = value."""
    frame.fast[slots >> 4] = frame.stack[-1]
    frame.stack[-1] = frame.fast[slots & 15]


@opcode("STORE_FAST_STORE_FAST", since=_3_13)
def store_fast_store_fast(frame: Frame, slots: int) -> None:
    """[second, first] -> []; local = first, another local = second."""
    frame.fast[slots >> 4] = frame.stack.pop()
    frame.fast[slots & 15] = frame.stack.pop()
