"""NumPy's functions and operators on random arrays: the prologue computes them at each call.

Functions outside of these tables read an array natively, and the array's values are guarded.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.frontend.acquire.outside.containers import UNBOUND
from thunder_core.frontend.acquire.outside.draws import NotReplayedError
from thunder_core.frontend.acquire.outside.reductions import is_of
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.tree import leaves

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


def computed_call(acquisition: TracedRun, function: Any, args: Any, kwargs: Any) -> Callable[..., Any] | None:
    """Return the replacement of a call on random arrays or NumPy scalars; None if C code reads them, or none exist."""
    if not acquisition.draws.arrays:
        return None
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if is_drawn(acquisition, owner):
        if name in WRITING_METHODS and not kwargs:
            return written(acquisition, owner, name)
        return method(acquisition, owner, name) if name in METHODS and "out" not in kwargs else None
    if type(function) in UNBOUND or not any(is_drawn(acquisition, leaf) for leaf in leaves((args, kwargs))):
        return None
    if function in CONVERSIONS or is_of_torch(function):
        scalars = [leaf for leaf in leaves((args, kwargs)) if is_scalar(acquisition, leaf)]
        return with_numbers(acquisition, function) if scalars and "array" not in name else None
    return applied(acquisition, function) if is_pure(function) and "out" not in kwargs else None


def computed_operation(acquisition: TracedRun, function: Any, operands: tuple[Any, ...]) -> Callable[[], Any] | None:
    """Return the replacement of an operator on random arrays or NumPy scalars."""
    if function in WRITING_OPERATORS and is_drawn(acquisition, operands[0]) and is_arithmetic(operands[1]):
        write = written(acquisition, operands[0], WRITING_OPERATORS[function])
        is_array = is_of(type(operands[0]), "numpy.ndarray")
        apply = applied(acquisition, function)
        return (lambda: write(operands[1])) if is_array else (lambda: apply(*operands))
    if function not in OPERATORS or not any(is_drawn(acquisition, leaf) for leaf in leaves(operands)):
        return None
    if any(isinstance(operand, TENSORS) for operand in operands):
        if not any(is_scalar(acquisition, operand) for operand in operands):
            return None
        call = with_numbers(acquisition, function)
        return lambda: call(*operands)
    if not all(is_arithmetic(operand) for operand in operands):
        return None
    apply = applied(acquisition, function)
    return lambda: apply(*operands)


def method(acquisition: TracedRun, owner: Any, name: str) -> Callable[..., Any]:
    """Return a method of a random array, which the prologue calls."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return acquisition.draws.method(owner, name, args, kwargs)
        except NotReplayedError:
            acquisition.outside.examine(owner)
            return acquisition.machine.natively(getattr(owner, name), args, kwargs)

    return run


def written(acquisition: TracedRun, array: Any, name: str) -> Callable[..., Any]:
    """Return a method that writes to a random array; the prologue calls it on a copy, if that is equivalent."""

    def run(*args: Any) -> Any:
        try:
            return acquisition.draws.written(array, name, args)
        except NotReplayedError:
            acquisition.outside.examine(array)
            return acquisition.machine.natively(getattr(array, name), args, {})

    return run


def stored(acquisition: TracedRun, array: Any, key: Any, value: Any) -> Any:
    """Store a value in a random array, and return it in Python's own numbers.

    The prologue stores the value in a copy.
    """
    acquisition.draws.written(array, "__setitem__", (key, value), by_caller=True)
    return acquisition.numbers.values(value)


def applied(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Return a function of random arrays, which the prologue calls."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return acquisition.draws.apply(function, args, kwargs)
        except NotReplayedError:
            acquisition.outside.expand_whole((args, kwargs))
            return acquisition.machine.natively(function, args, kwargs)

    return run


def with_numbers(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Return a function of tensors, or a conversion, that is called with symbolic numbers for random NumPy scalars."""

    def number(leaf: Any) -> Any:
        return acquisition.draws.method(leaf, "item", (), {}) if is_scalar(acquisition, leaf) else leaf

    def run(*args: Any, **kwargs: Any) -> Any:
        numbers = {key: number(value) for key, value in kwargs.items()}
        return acquisition.machine.call(function, *map(number, args), **numbers)

    return run


def is_drawn(acquisition: TracedRun, value: Any) -> bool:
    """Whether a value is a random array or NumPy scalar, or computed from random ones."""
    return acquisition.draws.arrays.get(id(value)) is value and value is not None


def is_scalar(acquisition: TracedRun, value: Any) -> bool:
    """Whether a value is a random number: a NumPy scalar, or an array without dimensions."""
    return is_drawn(acquisition, value) and value.ndim == 0 and value.dtype.kind in "iuf"


def is_arithmetic(operand: Any) -> bool:
    """Whether NumPy uses the value of an operand in arithmetic: a Python number, an index, or an array."""
    if isinstance(operand, tuple | list):
        return all(map(is_arithmetic, operand))
    plain = operand is None or isinstance(operand, int | float | complex | slice | SymbolicNumber) or operand is ...
    return plain or any(is_of(type(operand), kind) for kind in ("numpy.ndarray", "numpy.generic"))


def is_of_torch(function: Any) -> bool:
    """Whether a function belongs to PyTorch."""
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"


def is_pure(function: Any) -> bool:
    """Whether a NumPy function only reads values: a universal function, or one of `FUNCTIONS`."""
    numpy = sys.modules["numpy"]
    if isinstance(function, numpy.ufunc):
        return True
    name = getattr(function, "__name__", "")
    return name in FUNCTIONS and getattr(numpy, name, None) is function
