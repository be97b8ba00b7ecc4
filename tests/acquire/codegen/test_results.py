"""The result of a program has the class that eager returns."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import functools
import itertools
import operator
import re
import types
import weakref
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, RecompileWarning


class Pair(NamedTuple):
    """A tuple subclass of the user."""

    low: Any
    high: Any


PROGRAMS: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "a struct sequence": lambda x: torch.linalg.svd(x),
    "one with sizes in it": lambda x: torch.max(x, dim=0),
    "a named tuple": lambda x: Pair(x.min(), x.max()),
    "a size": lambda x: (x * 2).shape,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_tuples_keep_their_class(name: str) -> None:
    x = torch.arange(9.0).reshape(3, 3)
    eager, compiled = PROGRAMS[name](x), thunder.jit(PROGRAMS[name])(x)
    assert type(compiled) is type(eager)
    torch.testing.assert_close(tuple(compiled), tuple(eager), rtol=0, atol=0)


def test_sparse_tensor_is_returned_as_a_sparse_tensor() -> None:
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    compiled = thunder.jit(lambda x: x.to_sparse() if x.dim() == 2 else x)(x)
    assert compiled.layout is torch.sparse_coo
    assert torch.equal(compiled.to_dense(), x)


MADE_ANEW: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "deque": lambda x: (x + 1, deque([x, 2])),
    "defaultdict": lambda x: (x + 1, defaultdict(list, one=[x])),
    "Counter": lambda x: (x + 1, Counter("aab")),
    "OrderedDict": lambda x: (x + 1, OrderedDict(one=x * 2)),
    "OrderedDict in another order": lambda x: (x + 1, rearranged(OrderedDict(one=x * 2, two=1))),
    "a combination of flags": lambda x: (x + 1, Access.READ | Access.WRITE),
    "no flags": lambda x: (x + 1, Access(0)),
}
KEPT_IN_C: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "_lru_cache_wrapper": lambda x: (x + 1, functools.lru_cache(lambda: 1)),
    "generator `counted`, which has begun": lambda x: begun(counted(x)),
    "NumPy arrays that share memory": lambda x: twice_the_same_memory(),
}


class Access(enum.Flag):
    """Flags, whose combinations are no attributes of the class."""

    READ, WRITE = 1, 2


def rearranged(mapping: OrderedDict[str, Any]) -> OrderedDict[str, Any]:
    """Move the first item of a mapping to the end."""
    mapping.move_to_end("one")
    return mapping


def counted(x: Tensor, *more: int, step: float = 1.0, **named: float) -> Iterator[Tensor]:
    """A generator function with arguments of each kind."""
    for number in (1, 2, *more):
        yield x * number * step + sum(named.values())


def twice_the_same_memory() -> tuple[Any, ...]:
    """Return an array and a view of it."""
    found = np.zeros(3)
    return found, found[1:]


def begun(numbers: Iterator[Tensor]) -> tuple[Any, ...]:
    """Advance a generator past its first item."""
    return next(numbers), numbers


class Failure(Exception):
    """An exception class of the user."""

    def __init__(self, value: Any) -> None:
        super().__init__(value, "failed")
        self.value = value


def failure(x: Tensor) -> Failure:
    """Return an exception with a cause."""
    try:
        raise Failure(x * 2) from KeyError("key")
    except Failure as error:
        return error


def wrapped(x: Tensor) -> Callable[..., Any]:
    """Return a function with the name of another function, and with an attribute."""

    @functools.wraps(counted)
    def function(y: Tensor, *, by: Tensor = x) -> Tensor:
        return y * by + x

    function.level = [x * 3]  # type: ignore[attr-defined]
    return function


def advanced(iterator: Any) -> Any:
    """Advance an iterator past its first item."""
    next(iterator)
    return iterator


ITERATORS: dict[str, Callable[[Tensor], Any]] = {
    "list": lambda x: iter([x, x * 2]),
    "list, advanced": lambda x: advanced(iter([x, x * 2, 3])),
    "tuple, reversed": lambda x: reversed((x, x * 2)),
    "range": lambda x: iter(range(3)),
    "dict": lambda x: iter({"a": x}.values()),
    "views": lambda x: zip(*(({"a": x * 2}.keys(), {"a": x * 2}.items())), strict=True),
    "map": lambda x: map(functools.partial(torch.mul, x), [x, x + 1]),
    "filter": lambda x: filter(lambda y: y > 1, [1, 2, 3]),
    "enumerate": lambda x: enumerate([x, x * 2], 3),
    "nested": lambda x: zip(enumerate([x, x * 2]), (y * 3 for y in [x, x * 2]), strict=True),
    "islice of cycle": lambda x: itertools.islice(itertools.cycle([x * 2, 1]), 5),
    "repeat": lambda x: itertools.repeat(x * 2, 2),
    "accumulate": lambda x: itertools.accumulate([x, x * 2], initial=x * 5),
    "generator": lambda x: counted(x * 2, 5, 6, step=0.5, offset=1.0),
    "generator expression": lambda x: (y * x for y in [x, x * 3]),
}
VALUES: dict[str, Callable[[Tensor], Any]] = {
    "finfo": lambda x: (torch.finfo(x.dtype), torch.iinfo(torch.int8)),
    "union": lambda x: (int | str, list[int]),
    "scalars": lambda x: (np.float32(1.5), np.int64(3), np.bool_(True), np.complex64(1j)),
    "array": lambda x: np.arange(6, dtype=np.float16).reshape(2, 3).T,
    "large array": lambda x: np.arange(5000),
    "dtype": lambda x: np.dtype("float32"),
    "pattern": lambda x: re.compile("a+", re.IGNORECASE),
    "date": lambda x: (dt.date(2020, 1, 2), dt.datetime(2020, 1, 2, tzinfo=dt.UTC), dt.timedelta(1)),
    "numbers": lambda x: (Decimal("1.5"), Fraction(1, 3), range(3), slice(1, 2), 1 + 2j, ..., NotImplemented),
    "paths": lambda x: (PurePosixPath("a/b"), Path("c")),
    "bytes": lambda x: (b"a", bytearray(b"b"), array("i", [1, 2])),
    "sets": lambda x: frozenset([1, 2]),
    "deque": lambda x: deque([x * 2, 1], maxlen=3),
    "namespace": lambda x: types.SimpleNamespace(a=x * 2, b=[1]),
    "proxy": lambda x: types.MappingProxyType({"a": x * 2}),
    "getters": lambda x: (operator.itemgetter(1, 2), operator.attrgetter("a.b"), operator.methodcaller("f", 1, b=2)),
}


def made_anew(program: Callable[[Tensor], Any], show: Callable[[Any], Any]) -> None:
    """Compare the results of three calls of one trace with eager; each result belongs to its own call."""
    compiled = thunder.jit(program)
    for step in range(3):
        x = torch.ones(2) + step
        assert show(compiled(x)) == show(program(x))
    assert thunder.cache_misses(compiled) == 1


def describe(value: Any) -> str:
    """Return a value as text with the classes of its items."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    return f"{type(value).__name__}: {value!r}"


@pytest.mark.parametrize("name", ITERATORS)
def test_iterators_continue_where_the_program_stopped(name: str) -> None:
    made_anew(ITERATORS[name], lambda iterator: describe(list(iterator)))


@pytest.mark.parametrize("name", VALUES)
def test_values_with_state_in_c_are_rebuilt_at_each_call(name: str) -> None:
    made_anew(VALUES[name], describe)


def test_returned_exception_has_its_cause() -> None:
    made_anew(failure, lambda error: describe([type(error), error.args, vars(error), error.__cause__]))


def test_returned_function_has_its_attributes() -> None:
    names = ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "__wrapped__", "level")
    made_anew(wrapped, lambda function: describe([getattr(function, name) for name in names]))
    made_anew(lambda x: wrapped(x)(x), describe)


def test_partials_and_methods_hold_the_tensors_of_their_call() -> None:
    made_anew(lambda x: partial(torch.add, x * 2, alpha=2), lambda found: describe(found(torch.ones(2))))
    made_anew(lambda x: (x * 2).sum, lambda found: describe(found()))
    made_anew(lambda x: [x * 2].pop, lambda found: describe(found()))
    made_anew(lambda x: property(lambda self: x * 2), lambda found: describe(found.fget(None)))


def test_weak_reference_refers_to_the_object_of_the_call() -> None:
    class Target:
        """An object that supports weak references."""

    def program(x: Tensor) -> Any:
        target = Target()
        target.value = x * 2  # type: ignore[attr-defined]
        return target, weakref.ref(target)

    compiled = thunder.jit(program)
    for _ in range(2):
        target, reference = compiled(torch.ones(2))
        assert reference() is target


def test_weak_reference_to_a_dead_object_is_dead_at_each_call() -> None:
    def program(x: Tensor) -> Any:
        target = deque([x * 2])
        reference = weakref.ref(target)
        living = weakref.WeakValueDictionary(target=target).data["target"]  # type: ignore[attr-defined]
        return target.pop() + 1, reference, [reference, living]

    compiled = thunder.jit(program, executors=("torch",))
    for run in (program, compiled, compiled):
        result, reference, references = run(torch.ones(2))
        assert result.tolist() == [3.0, 3.0]
        assert references[0] is reference
        assert [type(item) for item in references] == [weakref.ref, weakref.KeyedRef]
        assert (reference(), references[1](), references[1].key) == (None, None, "target")
    assert thunder.cache_misses(compiled) == 1


def test_returned_coroutine_has_not_started() -> None:
    async def doubled(x: Tensor) -> Tensor:
        return x * 2

    made_anew(lambda x: doubled(x + 1), lambda coroutine: describe(asyncio.run(coroutine)))


@pytest.mark.parametrize("name", MADE_ANEW)
def test_containers_of_the_standard_library_are_rebuilt_at_each_call(name: str) -> None:
    x, compiled = torch.ones(2), thunder.jit(MADE_ANEW[name])
    for _ in range(2):
        found, wanted = compiled(x)[1], MADE_ANEW[name](x)[1]
        assert type(found) is type(wanted)
        assert repr(found) == repr(wanted)


@pytest.mark.parametrize("name", KEPT_IN_C)
def test_value_with_unreadable_state_in_c_is_refused(name: str) -> None:
    with pytest.raises(CannotReplay, match=name):
        thunder.jit(KEPT_IN_C[name], data_dependent="error")(torch.ones(2))


def ended(numbers: Iterator[Tensor]) -> Iterator[Tensor]:
    """Exhaust a generator."""
    assert [*numbers]
    return numbers


class Keeping:
    """An object on which programs store a generator."""

    kept: Any = None


PROGRESS: dict[str, Callable[[Tensor, Keeping], Any]] = {
    "the result is or contains the generator `counted`, which has begun and is at line": lambda x, kept: begun(
        counted(x)
    ),
    "the result is or contains the generator `counted`, which has ended": lambda x, kept: ended(counted(x)),
    r"args\[1\].kept is or contains the generator `counted`, which has begun": lambda x, kept: setattr(
        kept, "kept", begun(counted(x))[1]
    ),
}


@pytest.mark.parametrize("message", PROGRESS)
def test_error_reports_the_progress_of_a_generator(message: str) -> None:
    with pytest.raises(CannotReplay, match=message):
        thunder.jit(PROGRESS[message], data_dependent="error")(torch.ones(2), Keeping())


@pytest.mark.parametrize("name", KEPT_IN_C)
def test_eager_makes_calls_that_return_unreadable_state_in_c(name: str) -> None:
    fast = thunder.jit(KEPT_IN_C[name])
    with pytest.warns(RecompileWarning, match=name):
        first = fast(torch.ones(2))
    assert [type(item) for item in first] == [type(item) for item in fast(torch.ones(2))]


def test_eager_makes_calls_that_store_a_generator_that_has_begun() -> None:
    kept = Keeping()
    fast = thunder.jit(lambda x, kept: setattr(kept, "kept", begun(counted(x))[1]))
    with pytest.warns(RecompileWarning, match="which has begun"):
        fast(torch.ones(2), kept)
    assert next(kept.kept).tolist() == [2.0, 2.0]
