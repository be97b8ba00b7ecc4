"""NumPy's functions and operators on random arrays and on sizes: the prologue computes them at each call.

Functions outside of these tables read an array natively, and the array's values are guarded.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.frontend.acquire.outside.containers import UNBOUND
from thunder_core.frontend.acquire.outside.draws import NotReplayedError
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.reductions import derives_from
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.tree import leaves, replace_leaves

# NumPy functions that only read values and write to nothing.
FUNCTIONS = frozenset(
    """
    abs all amax amin any arange argmax argmin argsort argwhere array asarray around atleast_1d
    atleast_2d average broadcast_to clip column_stack concatenate copy cumprod cumsum diag diff dot
    empty_like expand_dims eye flip flatnonzero full full_like hstack interp isin linspace matmul max
    maximum mean median min minimum moveaxis nonzero ones_like outer prod ptp quantile ravel repeat
    reshape roll rot90 round searchsorted size sort split squeeze stack std sum swapaxes take
    take_along_axis tile transpose tril triu unique var vstack where zeros_like
    """.split()  # noqa: SIM905
)
CREATING = frozenset({"zeros", "ones", "full", "eye", "arange", "linspace"})
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
TENSORS = (torch.Tensor, FakeTensor)


def computed_call(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute a call on random arrays or NumPy scalars. It is not taken if C code reads them, or none exist."""
    if creates_for_sizes(function, args, kwargs):
        return apply(run, function, tuple(map(plain_shape, args)), kwargs)
    if not run.draws.arrays:
        return NOT_TAKEN
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if is_drawn(run, owner):
        if name in WRITING_METHODS and not kwargs:
            return call_writing_method(run, owner, name, args)
        return method(run, owner, name, args, kwargs) if name in METHODS and "out" not in kwargs else NOT_TAKEN
    if type(function) in UNBOUND or not any(is_drawn(run, leaf) for leaf in leaves((args, kwargs))):
        return NOT_TAKEN
    if function in CONVERSIONS or is_torch_function(function):
        has_scalars = any(is_scalar(run, leaf) for leaf in leaves((args, kwargs)))
        return with_numbers(run, function, args, kwargs) if has_scalars and "array" not in name else NOT_TAKEN
    return apply(run, function, args, kwargs) if is_pure(function) and "out" not in kwargs else NOT_TAKEN


def computed_operation(run: TracedRun, function: object, operands: tuple[Any, ...]) -> Any:
    """Compute an operator on random arrays or NumPy scalars."""
    if function in WRITING_OPERATORS and is_drawn(run, operands[0]) and is_arithmetic(operands[1]):
        if derives_from(type(operands[0]), "numpy.ndarray"):
            return call_writing_method(run, operands[0], WRITING_OPERATORS[function], operands[1:])
        return apply(run, function, operands, {})
    if function not in OPERATORS or not any(is_drawn(run, leaf) for leaf in leaves(operands)):
        return NOT_TAKEN
    if any(isinstance(operand, TENSORS) for operand in operands):
        has_scalars = any(is_scalar(run, leaf) for leaf in leaves(operands))
        return with_numbers(run, function, operands, {}) if has_scalars else NOT_TAKEN
    return apply(run, function, operands, {}) if all(map(is_arithmetic, operands)) else NOT_TAKEN


def creates_for_sizes(function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a NumPy function creates an array for sizes or numbers that vary between calls."""
    name = getattr(function, "__name__", "")
    if name not in CREATING or getattr(sys.modules.get("numpy"), name, None) is not function:
        return False
    return any(is_replayed_number(leaf) for leaf in leaves((args, kwargs)))


def plain_shape(value: object) -> Any:
    """Return a shape as a tuple, so that the prologue can compute its sizes; other values as they are."""
    return tuple(value) if type(value) is torch.Size else value


def is_replayed_number(value: object) -> bool:
    """Whether a value is a symbolic number that the prologue reads or computes."""
    return isinstance(value, SymbolicNumber) and isinstance(value.source, Path)


def method(run: TracedRun, owner: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a random array, which the prologue calls too."""
    try:
        return run.draws.method(owner, name, args, kwargs)
    except NotReplayedError:
        run.outside.examine(owner)
        return run.machine.natively(getattr(owner, name), args, kwargs)


def call_writing_method(run: TracedRun, array: object, name: str, args: tuple[Any, ...]) -> Any:
    """Call a method that writes to a random array; the prologue calls it on a copy, if that is equivalent."""
    try:
        return run.draws.written(array, name, args)
    except NotReplayedError:
        run.outside.examine(array)
        return run.machine.natively(getattr(array, name), args, {})


def store_item(run: TracedRun, array: object, key: object, value: object) -> Any:
    """Store a value in a random array, and return it in Python's own numbers.

    The prologue stores the value in a copy.
    """
    run.draws.written(array, "__setitem__", (key, value), by_caller=True)
    return run.numbers.values(value)


def apply(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of random arrays, which the prologue calls too."""
    try:
        return run.draws.apply(function, args, kwargs)
    except NotReplayedError:
        run.outside.expand_whole((args, kwargs))
        return run.machine.natively(function, args, kwargs)


def with_numbers(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of tensors, or a conversion, with symbolic numbers for random NumPy scalars."""

    def number(leaf: object) -> Any:
        return run.draws.method(leaf, "item", (), {}) if is_scalar(run, leaf) else leaf

    args, kwargs = replace_leaves((args, kwargs), number)
    return run.machine.call(function, *args, **kwargs)


def is_drawn(run: TracedRun, value: object) -> bool:
    """Whether a value is a random array or NumPy scalar, or computed from random ones."""
    return run.draws.arrays.get(id(value)) is value and value is not None


def is_scalar(run: TracedRun, value: Any) -> bool:
    """Whether a value is a random number: a NumPy scalar, or an array without dimensions."""
    return is_drawn(run, value) and value.ndim == 0 and value.dtype.kind in "iuf"


def is_arithmetic(operand: object) -> bool:
    """Whether NumPy uses the value of an operand in arithmetic: a Python number, an index, or an array."""
    if isinstance(operand, tuple | list):
        return all(map(is_arithmetic, operand))
    plain = operand is None or isinstance(operand, int | float | complex | slice | SymbolicNumber) or operand is ...
    return plain or any(derives_from(type(operand), kind) for kind in ("numpy.ndarray", "numpy.generic"))


def is_torch_function(function: object) -> bool:
    """Whether a function belongs to PyTorch."""
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"


def is_pure(function: object) -> bool:
    """Whether a NumPy function only reads values: a universal function, or one of `FUNCTIONS`."""
    numpy = sys.modules["numpy"]
    if isinstance(function, numpy.ufunc):
        return True
    name = getattr(function, "__name__", "")
    return name in FUNCTIONS and getattr(numpy, name, None) is function
