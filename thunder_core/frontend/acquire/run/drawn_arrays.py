"""NumPy's functions and operators on drawn arrays and on symbolic numbers: the prologue computes them at each call.

A drawn array is a random array, or an array that is computed from one. If a function is not in the tables below, it
reads the array natively, and the array's values are guarded.
"""

from __future__ import annotations

import operator
import sys
import types
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.frontend.acquire.outside.call_traits import is_torch_function
from thunder_core.frontend.acquire.outside.containers import UNBOUND_METHOD_CLASSES
from thunder_core.frontend.acquire.outside.draws import NotReplayedError
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.reductions import derives_from, root_of_array
from thunder_core.frontend.acquire.run.sequence_operations import operation_on_sequences
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import PREDICATES, RESULT_CLASSES, SymbolicNumber
from thunder_core.tracing.ir.tree import leaves, replace_leaves

# NumPy functions that only read values and write to nothing.
FUNCTIONS = frozenset(
    """
    abs all amax amin any arange argmax argmin argsort argwhere array asarray around atleast_1d
    atleast_2d average broadcast_to clip column_stack concatenate copy cumprod cumsum diag diff dot
    empty_like expand_dims eye flip flatnonzero full full_like hstack interp isin linspace matmul max
    maximum mean median min minimum moveaxis nonzero ones_like outer prod ptp quantile ravel repeat
    reshape roll rot90 round searchsorted size sort split squeeze stack std sum swapaxes take
    ones take_along_axis tile transpose tril triu unique var vstack where zeros zeros_like
    """.split()  # noqa: SIM905
)
METHODS = frozenset(
    """
    all any argmax argmin argsort astype clip copy cumprod cumsum diagonal dot flatten item max mean min
    nonzero prod ptp ravel repeat reshape round squeeze std sum swapaxes take tolist transpose var
    __array__ __getitem__
    """.split()  # noqa: SIM905
)
WRITING_METHODS = frozenset({"sort", "fill", "partition", "put", "itemset"})
WRITING_OPERATORS = {
    function: f"__{function.__name__}__"
    for function in (
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod),
        *(operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift),
    )
}
OPERATORS = frozenset(
    (
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
        *(operator.matmul, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        *(operator.neg, operator.pos, operator.invert, operator.getitem),
    )
)
CONVERSIONS = (float, int)
# Functions of Python that compute with NumPy's numbers.
PYTHON_FUNCTIONS = frozenset({abs, divmod, pow, round, *RESULT_CLASSES, *PREDICATES}) - {*CONVERSIONS}
NUMBER, ARRAY = "numpy.generic", "numpy.ndarray"
TENSORS = (torch.Tensor, FakeTensor)


def call_on_drawn(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let the prologue compute a call on drawn arrays, drawn NumPy scalars, or symbolic numbers.

    Return `NOT_TAKEN` if none of them is among the operands, or if the function is not in the tables: it then reads
    their values.
    """
    if computes_from_numbers(run, function, args, kwargs):
        return apply_in_prologue(run, function, tuple(map(plain_shape, args)), kwargs)
    if not run.draws.arrays:
        return NOT_TAKEN
    owner, name = callable_attribute(function, "__self__"), callable_name(function)
    if is_drawn(run, owner):
        if name in WRITING_METHODS and not kwargs:
            return call_writing_method(run, owner, name, args)
        return (
            call_method_in_prologue(run, owner, name, args, kwargs)
            if name in METHODS and "out" not in kwargs
            else NOT_TAKEN
        )
    if not any(is_drawn(run, leaf) for leaf in leaves((args, kwargs))):
        return NOT_TAKEN
    if function in CONVERSIONS or is_torch_function(function):
        has_scalars = any(is_scalar(run, leaf) for leaf in leaves((args, kwargs)))
        return with_numbers(run, function, args, kwargs) if has_scalars and "array" not in name else NOT_TAKEN
    if type(function) in UNBOUND_METHOD_CLASSES:
        return NOT_TAKEN
    computes = is_pure(function) or is_number_class(function) or is_python_function(function)
    return apply_in_prologue(run, function, args, kwargs) if computes and "out" not in kwargs else NOT_TAKEN


def operate_on_drawn(run: TracedRun, function: object, operands: tuple[Any, ...]) -> Any:
    """Let the prologue apply an operator to drawn arrays or NumPy scalars, or to a symbolic number and a NumPy value.

    Return `NOT_TAKEN` for other operators and operands.
    """
    if function in WRITING_OPERATORS and is_arithmetic(operands[1]):
        if is_drawn(run, operands[0]) and derives_from(type(operands[0]), ARRAY):
            return call_writing_method(run, operands[0], WRITING_OPERATORS[function], operands[1:])
        if is_drawn(run, operands[0]) or is_mixed(run, operands):
            return apply_in_prologue(run, function, operands, {})
    if function not in OPERATORS:
        return NOT_TAKEN
    # An item of a list is read for its index alone: a search of the whole list would be repeated for each item.
    is_item = function is operator.getitem and type(operands[0]) in (list, tuple, dict)
    searched = operands[1:] if is_item else operands
    if not any(is_drawn(run, leaf) for leaf in leaves(searched)) and not is_mixed(run, operands):
        return NOT_TAKEN
    if any(isinstance(operand, TENSORS) for operand in operands):
        has_scalars = any(is_scalar(run, leaf) for leaf in leaves(operands))
        return with_numbers(run, function, operands, {}) if has_scalars else NOT_TAKEN
    return apply_in_prologue(run, function, operands, {}) if all(map(is_arithmetic, operands)) else NOT_TAKEN


def operate_in_prologue(run: TracedRun, function: Any, operands: tuple[Any, ...]) -> Any:
    """Apply an operator to values of NumPy or to sequences of symbolic length; return `NOT_TAKEN` for others."""
    value = operate_on_drawn(run, function, operands)
    return operation_on_sequences(run, function, operands) if value is NOT_TAKEN else value


def combine_numbers(run: TracedRun, function: object, operands: tuple[Any, ...]) -> Any:
    """Apply an operator to a symbolic number and a value of NumPy or a list; return `NotImplemented` for others."""
    value = operate_in_prologue(run, function, operands)
    return NotImplemented if value is NOT_TAKEN else value


def is_mixed(run: TracedRun, operands: tuple[Any, ...]) -> bool:
    """Whether the operands are a symbolic number that the prologue computes, and a number or an array of NumPy."""
    return (
        run.recorder.numbers.has_symbolic
        and any(map(is_replayed_number, operands))
        and any(is_plain_numpy(run, operand) for operand in operands)
    )


def is_plain_numpy(run: TracedRun, value: object) -> bool:
    """Whether a value is a number of NumPy, or an array that shares no memory with a tensor of the program."""
    if derives_from(type(value), NUMBER):
        return True
    return derives_from(type(value), ARRAY) and not run.recorder.data.owns(root_of_array(value))


def computes_from_numbers(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function or a class of numbers of NumPy is called with sizes or numbers that vary between calls."""
    if not run.recorder.numbers.has_symbolic or "out" in kwargs:
        return False
    if not is_number_class(function) and not is_pure(function):
        return False
    operands = list(leaves((args, kwargs)))
    return any(map(is_replayed_number, operands)) and not any(isinstance(operand, TENSORS) for operand in operands)


def is_number_class(function: object) -> bool:
    """Whether a callable is a class of NumPy's numbers, such as `numpy.int64`."""
    return isinstance(function, type) and derives_from(function, NUMBER)


def is_python_function(function: object) -> bool:
    """Whether a function of Python computes with NumPy's numbers."""
    return isinstance(function, types.BuiltinFunctionType) and function in PYTHON_FUNCTIONS


def plain_shape(value: object) -> Any:
    """Return a shape as a tuple, so that the prologue can compute its sizes; other values as they are."""
    return tuple(value) if type(value) is torch.Size else value


def is_replayed_number(value: object) -> bool:
    """Whether a value is a symbolic number that the prologue reads or computes."""
    return isinstance(value, SymbolicNumber) and isinstance(value.source, Path)


def call_method_in_prologue(
    run: TracedRun, owner: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a method of a random array, which the prologue calls too."""
    try:
        return run.draws.call_method(owner, name, args, kwargs)
    except NotReplayedError:
        run.outside.guard_state(owner)
        return run.machine.call_unreported(getattr(owner, name), args, kwargs)


def call_writing_method(run: TracedRun, array: object, name: str, args: tuple[Any, ...]) -> Any:
    """Call a method that writes to a random array; the prologue calls it on a copy, if that is equivalent."""
    try:
        return run.draws.call_writing_method(array, name, args)
    except NotReplayedError:
        run.outside.guard_state(array)
        return run.machine.call_unreported(getattr(array, name), args, {})


def store_item(run: TracedRun, array: object, key: object, value: object) -> Any:
    """Store a value in a random array, and return the value with the values of its symbolic numbers in this call.

    The prologue stores the value in a copy of the array.
    """
    run.draws.call_writing_method(array, "__setitem__", (key, value), by_caller=True)
    return run.numbers.values(value)


def apply_in_prologue(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of random arrays, which the prologue calls too."""
    try:
        return run.draws.apply(function, args, kwargs)
    except NotReplayedError:
        run.outside.expand_whole((args, kwargs))
        return run.machine.call_unreported(function, args, kwargs)


def with_numbers(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of tensors, or a conversion, with symbolic numbers for random NumPy scalars."""
    args, kwargs = with_symbolic_scalars(run, (args, kwargs))
    return run.machine.call(function, *args, **kwargs)


def with_symbolic_scalars(run: TracedRun, tree: Any) -> Any:
    """Return nested values with symbolic numbers for random NumPy scalars."""

    def number(leaf: object) -> Any:
        return run.draws.call_method(leaf, "item", (), {}) if is_scalar(run, leaf) else leaf

    return replace_leaves(tree, number)


def is_drawn(run: TracedRun, value: object) -> bool:
    """Whether a value is a random array or NumPy scalar, or was computed from one."""
    return run.draws.arrays.get(id(value)) is value and value is not None


def is_scalar(run: TracedRun, value: Any) -> bool:
    """Whether a value is a random number: a NumPy scalar, or an array without dimensions."""
    return is_drawn(run, value) and value.ndim == 0 and value.dtype.kind in "iuf"


def is_arithmetic(operand: object) -> bool:
    """Whether NumPy uses the value of an operand in arithmetic: a Python number, an index, or an array."""
    if isinstance(operand, tuple | list):
        return all(map(is_arithmetic, operand))
    plain = operand is None or isinstance(operand, int | float | complex | slice | SymbolicNumber) or operand is ...
    return plain or any(derives_from(type(operand), kind) for kind in (ARRAY, NUMBER))


def is_pure(function: object) -> bool:
    """Whether a NumPy function only reads values: a universal function, or one of `FUNCTIONS`."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if isinstance(function, numpy.ufunc):
        return True
    name = callable_name(function)
    return name in FUNCTIONS and getattr(numpy, name, None) is function
