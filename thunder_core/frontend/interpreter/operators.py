"""Operators and protocols: special methods in Python are interpreted, and all others are applied natively."""

import operator
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, GeneratorType, NoneType
from typing import Any

from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.iterators import may_call_or_forward
from thunder_core.frontend.interpreter.lookup import python_method, type_lookup, type_name
from thunder_core.tracing.library.changes.class_entries import ABSENT

Operator = Callable[[Any, Any], Any]

# Types whose operators run no user code and need no announcement.
PRIMITIVE_TYPES = frozenset({int, float, bool, str, NoneType, bytes, complex})

BINARY: tuple[Operator, ...] = (
    operator.add, operator.and_, operator.floordiv, operator.lshift, operator.matmul, operator.mul, operator.mod,
    operator.or_, operator.pow, operator.rshift, operator.sub, operator.truediv, operator.xor,
    operator.iadd, operator.iand, operator.ifloordiv, operator.ilshift, operator.imatmul, operator.imul, operator.imod,
    operator.ior, operator.ipow, operator.irshift, operator.isub, operator.itruediv, operator.ixor,
)  # fmt: skip
COMPARISONS: tuple[Operator, ...] = (
    operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge,
)  # fmt: skip

_STEMS = (
    "add", "and", "floordiv", "lshift", "matmul", "mul", "mod", "or", "pow", "rshift", "sub", "truediv", "xor",
)  # fmt: skip
_METHOD_NAME_OF = dict(zip(BINARY, [f"__{stem}__" for stem in _STEMS] * 2, strict=True))
_IN_PLACE_METHOD_NAME_OF = dict(zip(BINARY[13:], [f"__i{stem}__" for stem in _STEMS], strict=True))
_COMPARISON_NAME_OF = {
    operator.lt: "__lt__", operator.le: "__le__", operator.eq: "__eq__",
    operator.ne: "__ne__", operator.gt: "__gt__", operator.ge: "__ge__",
}  # fmt: skip
_SWAPPED_NAME_OF = {
    "__lt__": "__gt__", "__le__": "__ge__", "__eq__": "__eq__",
    "__ne__": "__ne__", "__gt__": "__lt__", "__ge__": "__le__",
}  # fmt: skip
_SIGNS = dict(zip(_STEMS, ("+", "&", "//", "<<", "@", "*", "%", "|", "** or pow()", ">>", "-", "/", "^"), strict=True))


def binary(machine: Machine, function: Operator, left: object, right: object) -> Any:
    """Apply a binary or in-place operator."""
    left_kind, right_kind = machine.class_of(left), machine.class_of(right)
    name = _METHOD_NAME_OF[function]
    in_place = _IN_PLACE_METHOD_NAME_OF.get(function)
    if in_place is not None:
        value = _in_place(machine, function, in_place, left, right)
        if value is not NotImplemented:
            return value
    reflected = f"__r{name[2:]}"
    first = python_method(left_kind, name)
    second = python_method(right_kind, reflected) if right_kind is not left_kind else None
    if second is not None and issubclass(right_kind, left_kind) and type_lookup(left_kind, reflected) is not second:
        value = machine.invoke(second, (right, left), {})
        if value is not NotImplemented:
            return value
        second = None
    elif first is None and (second is None or type_lookup(left_kind, name) is not ABSENT):
        return machine.operate(function, left, right)
    if first is not None:
        value = machine.invoke(first, (left, right), {})
        if value is not NotImplemented:
            return value
    elif type_lookup(left_kind, name) is not ABSENT:
        value = machine.operate(type_lookup(left_kind, name), left, right)
        if value is not NotImplemented:
            return value
    if second is not None:
        value = machine.invoke(second, (right, left), {})
        if value is not NotImplemented:
            return value
    elif right_kind is not left_kind:
        other = type_lookup(right_kind, reflected)
        if other is not ABSENT and type(other) is not FunctionType:
            value = machine.operate(other, right, left)
            if value is not NotImplemented:
                return value
    raise TypeError(_unsupported_message(name, left_kind, right_kind, in_place=in_place is not None))


def _in_place(machine: Machine, function: Operator, name: str, left: object, right: object) -> Any:
    """Return the result of an in-place method; NotImplemented if there is no such method."""
    kind = machine.class_of(left)
    method = python_method(kind, name)
    if method is not None:
        return machine.invoke(method, (left, right), {})
    return NotImplemented if type_lookup(kind, name) is ABSENT else machine.operate(function, left, right)


def _unsupported_message(name: str, left_kind: type, right_kind: type, *, in_place: bool) -> str:
    """Return CPython's message for operands that no method accepts."""
    stem = name[2:-2]
    sign = _SIGNS[stem] if not in_place else "**=" if stem == "pow" else f"{_SIGNS[stem]}="
    return f"unsupported operand type(s) for {sign}: '{type_name(left_kind)}' and '{type_name(right_kind)}'"


def compare(machine: Machine, function: Operator, left: object, right: object) -> Any:
    """Apply a comparison."""
    name = _COMPARISON_NAME_OF[function]
    left_kind, right_kind = machine.class_of(left), machine.class_of(right)
    first = python_method(left_kind, name)
    second = python_method(right_kind, _SWAPPED_NAME_OF[name])
    tries_right_first = is_right_first(right_kind, left_kind)
    if first is None and second is None and tries_right_first == is_right_first(type(right), type(left)):
        return machine.operate(function, left, right)
    attempts = [(first, left_kind, name, left, right), (second, right_kind, _SWAPPED_NAME_OF[name], right, left)]
    for method, kind, special, owner, operand in reversed(attempts) if tries_right_first else attempts:
        if method is not None:
            value = machine.invoke(method, (owner, operand), {})
        else:
            value = machine.operate(type_lookup(kind, special), owner, operand)
        if value is not NotImplemented:
            return value
    if function is operator.eq:
        return left is right
    if function is operator.ne:
        return left is not right
    sign = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}[name]
    raise TypeError(
        f"'{sign}' not supported between instances of '{type_name(left_kind)}' and '{type_name(right_kind)}'"
    )


def is_right_first(right_kind: type, left_kind: type) -> bool:
    """Whether the right operand's method is tried first: its class is a proper subclass of the left operand's."""
    return right_kind is not left_kind and issubclass(right_kind, left_kind)


UNARY = {operator.neg: "__neg__", operator.pos: "__pos__", operator.invert: "__invert__"}


def unary(machine: Machine, function: Callable[[Any], Any], operand: object) -> Any:
    """Apply `-`, `+` or `~`."""
    method = python_method(type(operand), UNARY[function])
    if method is not None:
        return machine.invoke(method, (operand,), {})
    return machine.operate(function, operand)


def truth(machine: Machine, value: object) -> bool:
    """Return `bool(value)`."""
    kind = type(value)
    if kind in PRIMITIVE_TYPES:
        return bool(value)
    unbound = type_lookup(kind, "__bool__")
    if type(unbound) is FunctionType:
        result = machine.invoke(unbound, (value,), {})
        if type(result) is not bool:
            raise TypeError(f"__bool__ should return bool, returned {type_name(type(result))}")
        return result
    if unbound is ABSENT:
        method = python_method(kind, "__len__")
        if method is not None:
            return length(machine, value) != 0
    return bool(machine.operate(bool, value))


def length(machine: Machine, value: object) -> int:
    """Return `len(value)`."""
    method = python_method(type(value), "__len__")
    if method is None:
        return int(machine.operate(len, value))
    return len(_Sized(machine.invoke(method, (value,), {})))


class _Sized:
    """An object whose `__len__` returns a given value, so that `len` checks the value and raises CPython's errors."""

    __slots__ = ("size",)

    def __init__(self, size: Any) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size  # type: ignore[no-any-return]


def iterate(machine: Machine, value: object) -> Any:
    """Return `iter(value)`."""
    method = python_method(type(value), "__iter__")
    if method is None:
        return machine.operate(iter, value)
    iterator = machine.invoke(method, (value,), {})
    if type_lookup(type(iterator), "__next__") in (ABSENT, None):
        raise TypeError(f"iter() returned non-iterator of type '{type_name(type(iterator))}'")
    return iterator


def contains(machine: Machine, container: object, item: object) -> bool:
    """Return `item in container`."""
    kind = type(container)
    unbound = type_lookup(kind, "__contains__")
    if type(unbound) is FunctionType:
        return truth(machine, machine.invoke(unbound, (container, item), {}))
    may_step_python = kind is GeneratorType or may_call_or_forward(kind)
    if unbound is ABSENT and (may_step_python or python_method(kind, "__iter__") is not None):
        iterator = iterate(machine, container)
        while True:
            element = advance(machine, iterator, ABSENT)
            if element is ABSENT:
                return False
            if element is item or truth(machine, compare(machine, operator.eq, element, item)):
                return True
    return bool(machine.operate(operator.contains, container, item))


def advance(machine: Machine, iterator: object, default: object) -> Any:
    """Return `next(iterator)`, or `default` if the iterator is exhausted."""
    kind = type(iterator)
    if kind is not GeneratorType:
        method = python_method(kind, "__next__")
        if method is not None:
            try:
                return machine.invoke(method, (iterator,), {})
            except StopIteration:
                return default
    return machine.operate(next, iterator, default)


def get_item(machine: Machine, container: Any, key: object) -> Any:
    """Return `container[key]`."""
    method = python_method(type(container), "__getitem__")
    if method is not None:
        return machine.invoke(method, (container, key), {})
    if issubclass(type(container), type):
        of_class = type_lookup(container, "__class_getitem__")
        if (
            type_lookup(type(container), "__getitem__") is ABSENT
            and type(of_class) is classmethod
            and type(of_class.__func__) is FunctionType
        ):
            return machine.invoke(of_class.__func__, (container, key), {})
    return machine.load_item(container, key)


def set_item(machine: Machine, container: object, key: object, value: object) -> None:
    """Set `container[key] = value`."""
    method = python_method(type(container), "__setitem__")
    if method is not None:
        machine.invoke(method, (container, key, value), {})
    else:
        machine.store_item(container, key, value)


def delete_item(machine: Machine, container: object, key: object) -> None:
    """Delete `container[key]`."""
    method = python_method(type(container), "__delitem__")
    if method is not None:
        machine.invoke(method, (container, key), {})
    else:
        machine.delete_item(container, key)


def special(machine: Machine, owner: object, name: str) -> Any:
    """Return a special method, read from the type and bound to the instance; ABSENT if there is none."""
    unbound = type_lookup(type(owner), name)
    if unbound is ABSENT or type(unbound) is BuiltinFunctionType:
        return unbound
    if type(unbound) is not FunctionType:
        method = python_method(type(unbound), "__get__")
        if method is not None:
            return machine.invoke(method, (unbound, owner, type(owner)), {})
    binder = type_lookup(type(unbound), "__get__")
    return unbound if binder is ABSENT else binder(unbound, owner, type(owner))


def next_of(machine: Machine, iterator: object) -> Any:
    """Return `next(iterator)`; raise StopIteration if the iterator is exhausted."""
    method = python_method(type(iterator), "__next__")
    if method is not None:
        return machine.invoke(method, (iterator,), {})
    return machine.operate(next, iterator)
