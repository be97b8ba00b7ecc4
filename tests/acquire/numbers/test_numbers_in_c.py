"""Numbers from tensors, and sizes, reach C code as Python's own numbers: dtypes and classes match eager."""

from __future__ import annotations

import array
import bisect
import collections
import datetime as dt
import decimal
import fractions
import heapq
import json
import math
import numbers
import statistics
import struct
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from tests.same import assert_same
from tests.uncompiled import leave_inductor_out

Program = Callable[[Tensor], Any]


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs in eager operations; results do not depend on the executor."""
    leave_inductor_out(monkeypatch)


def count(x: Tensor) -> Any:
    return x[0].long().item()


def total(x: Tensor) -> Any:
    return x.sum().item()


def written(x: Tensor) -> Any:
    array = np.zeros(6)
    array[count(x)] = total(x)
    return array


def kept_in_a_dict(x: Tensor) -> Any:
    table = {"a": total(x), "b": [count(x)]}
    return json.dumps(table), table, x * table["a"]


PROGRAMS: dict[str, Program] = {
    "arange": lambda x: np.arange(count(x)),
    "array of a list": lambda x: np.array([count(x), 2]),
    "array of lists": lambda x: np.array([[total(x), 2], [1, 2]]),
    "array of a tuple": lambda x: np.array((total(x), 2)),
    "array times an integer": lambda x: np.ones(2, np.int32) * count(x),
    "an integer times an array": lambda x: count(x) * np.ones(2, np.int32),
    "array of float32 and a float": lambda x: np.ones(2, np.float32) + total(x),
    "comparison": lambda x: np.ones(2, np.float32) < total(x),
    "scalar of NumPy's": lambda x: np.float32(2) * total(x),
    "scalar of float64": lambda x: np.float64(2) * total(x),
    "float times float64": lambda x: total(x) * np.float64(2),
    "integer and int64": lambda x: count(x) < np.int64(4),
    "isscalar": lambda x: np.isscalar(count(x)),
    "mean": lambda x: torch.as_tensor(np.mean([x.mean().item(), 2.0])),
    "sqrt": lambda x: np.sqrt(count(x)),
    "round": lambda x: np.round(total(x)),
    "full": lambda x: torch.from_numpy(np.full(3, count(x))),
    "keyword": lambda x: np.full(shape=2, fill_value=total(x)),
    "linspace": lambda x: np.linspace(0, total(x), count(x)),
    "where": lambda x: np.where(np.arange(6) < count(x), total(x), 0),
    "index": lambda x: np.arange(10)[count(x)],
    "slice": lambda x: np.arange(10)[: count(x)],
    "reshape": lambda x: np.arange(60)[: count(x) * 2].reshape(count(x), 2),
    "written into an array": written,
    "member of an array": lambda x: count(x) in np.arange(4),
    "json": lambda x: json.dumps(count(x)),
    "json of a dict that is kept": kept_in_a_dict,
    "struct": lambda x: struct.pack("d", total(x)),
    "decimal": lambda x: str(decimal.Decimal(total(x))),
    "decimal times an integer": lambda x: str(decimal.Decimal(2) * count(x)),
    "fraction": lambda x: fractions.Fraction(count(x), 3),
    "timedelta": lambda x: dt.timedelta(seconds=total(x)),
    "timedelta times an integer": lambda x: dt.timedelta(seconds=1) * count(x),
    "hypot": lambda x: math.hypot(total(x), 2),
    "gcd": lambda x: math.gcd(count(x), 6),
    "statistics": lambda x: statistics.mean([total(x), 2.0]),
    "array of C": lambda x: array.array("d", [total(x)]).tolist(),
    "abstract classes": lambda x: (isinstance(count(x), numbers.Integral), isinstance(total(x), numbers.Real)),
    "bytes": lambda x: bytes([count(x)]),
    "complex": lambda x: complex(total(x), 2),
    "seeded generator": lambda x: np.random.RandomState(count(x)).rand(2),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_number_from_a_tensor_is_a_plain_number_in_c(program: Program) -> None:
    compiled = thunder.jit(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", thunder.errors.RecompileWarning)
        for first in (3.0, 4.0, 3.0, 5.0):
            x = torch.tensor([first, 0.5, 2.0])
            assert_same(compiled(x), program(x), rtol=0, atol=0)


def sizes(x: Tensor) -> Any:
    count = x.shape[0]
    return (
        x,
        np.arange(count),
        np.array([count, 2]),
        np.ones(2, np.int32) * count,
        np.full(2, count),
        json.dumps([count]),
    )


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_size_is_a_plain_number_in_c(cache: Any) -> None:
    compiled = thunder.jit(sizes, cache=cache)
    for count in (2, 3, 4, 5):
        assert_same(compiled(torch.ones(count)), sizes(torch.ones(count)), rtol=0, atol=0)


class Point(NamedTuple):
    """A named tuple of two numbers."""

    first: Any
    second: Any


class Reversed(list[Any]):
    """A list that iterates from its end."""

    def __iter__(self) -> Any:
        return reversed([*super().__iter__()])


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "named tuple": lambda number: Point(number, 2),
    "nested": lambda number: [Point((number, 1), [2, number])[0]],
    "deque": lambda number: collections.deque([number, 2]),
    "list subclass": lambda number: Reversed([number, 2]),
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_number_in_any_container_is_a_plain_number_in_c(cache: Any, make: Callable[[Any], Any]) -> None:
    def program(x: Tensor, number: int) -> Any:
        return x, np.array(make(number)), np.array(make(x.sum().item()))

    compiled = thunder.jit(program, cache=cache)
    for count in (2, 3, 4, 5):
        found, expected = compiled(torch.ones(count), count), program(torch.ones(count), count)
        assert [array.dtype for array in found[1:]] == [array.dtype for array in expected[1:]]
        assert_same(found, expected, rtol=0, atol=0)


class Counter:
    """A counter that changes from call to call."""

    count = 1
    rate = 0.5


def test_outside_number_is_a_plain_number_in_c() -> None:
    counter = Counter()

    def program(x: Tensor) -> Any:
        counter.count += 1
        return x * counter.count, np.arange(counter.count), np.array([counter.count, 1]), np.float32(2) * counter.rate

    compiled = thunder.jit(program)
    for count in range(4):
        counter.count = count
        found = compiled(torch.ones(1))
        counter.count = count
        assert_same(found, program(torch.ones(1)), rtol=0, atol=0)


def test_number_that_does_not_reach_c_stays_unguarded() -> None:
    compiled = thunder.jit(lambda x: x * x.sum().item())
    for step in range(12):
        x = torch.ones(2) * step
        assert torch.equal(compiled(x), x * x.sum())
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("function", [heapq.heappush, bisect.insort])
def test_list_that_a_c_function_changes_is_read_after_the_change(function):
    ours, eagers = [], []

    def program(items, x):
        function(items, -x.shape[0])
        return x * items[0] + len(items)

    compiled = thunder.jit(program)
    for size in (3, 3, 5, 3, 7, 4):
        x = torch.ones(size)
        assert torch.equal(compiled(ours, x), program(eagers, x))
        assert ours == eagers


SORTED: list[int] = []


def test_list_that_a_c_function_takes_by_keyword_is_changed_at_each_call():
    def program(x):
        bisect.insort(a=SORTED, x=3)
        return x * len(SORTED)

    compiled = thunder.jit(program)
    for count in (1, 2, 3):
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * count)
        assert [3] * count == SORTED
