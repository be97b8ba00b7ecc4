"""C code hashes, compares and prints objects: each call uses its own objects, not the traced ones."""

from __future__ import annotations

import array
import bisect
import collections
import datetime as dt
import decimal
import fractions
import math
import types
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import thunder_core as thunder

X = torch.arange(3.0)


class Plain:
    """An object that equals only itself."""

    def scaled(self, x):
        return x


class Pair(NamedTuple):
    first: int
    second: object = None


def itself(value):
    return value


def stored_by_default(key):
    table = {}
    table.setdefault(key, 1)
    return table


FIRST, SECOND = Plain(), Plain()
# For each kind, two values that differ; the first is also what the functions compare with.
VALUES: dict[str, tuple[Any, Any]] = {
    "objects": (FIRST, SECOND),
    "methods": (FIRST.scaled, SECOND.scaled),
    "numbers of NumPy": (np.int64(2), np.int64(3)),
    "truth values of NumPy": (np.bool_(True), np.bool_(False)),
    "dates": (dt.date(2020, 1, 2), dt.date(2020, 1, 3)),
    "decimals": (decimal.Decimal("1.5"), decimal.Decimal("2.5")),
    "fractions": (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    "tuples": ((1, (2, FIRST)), (1, (2, SECOND))),
    "named tuples": (Pair(1), Pair(2)),
    "frozen sets": (frozenset({1}), frozenset({2})),
    "lists": ([1, 2], [1, 3]),
    "deques": (deque([1], 2), deque([1], 3)),
    "arrays": (array.array("f", [1.0]), array.array("f", [2.0])),
    "byte arrays": (bytearray(b"ab"), bytearray(b"ac")),
    "proxies of dicts": (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2})),
    "views of dicts": ({"a": 1}.keys(), {"b": 1}.keys()),
    "default dicts": (defaultdict(int), defaultdict(list)),
    "limits of dtypes": (torch.finfo(torch.float32), torch.finfo(torch.float16)),
}
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda value, first: value == first,
    "!=": lambda value, first: value != first,
    "a list": lambda value, first: value in [first],
    "its items": lambda value, first: [first, value].index(value) + [value].count(first),
    "a tuple": lambda value, first: (1, value) == (1, first),
    "a key": lambda value, first: {value: 1}.get(first),
    "a lookup": lambda value, first: {first: 1}.get(value),
    "a default": lambda value, first: stored_by_default(value).get(first),
    "a comprehension": lambda value, first: dict.fromkeys((value,), 1).get(first),
    "pairs": lambda value, first: dict([(value, 1)]).get(first),  # noqa: C406
    "pairs of a generator": lambda value, first: dict((key, 1) for key in (value,)).get(first),  # noqa: C402
    "zip": lambda value, first: dict(zip([value], [1], strict=True)).get(first),
    "fromkeys": lambda value, first: dict.fromkeys([value]).get(first, 5),
    "a set": lambda value, first: first in {value},
    "a set of a generator": lambda value, first: first in set(key for key in (value,)),  # noqa: C401
    "a generator": lambda value, first: first in (item for item in (value,)),
    "an iterator": lambda value, first: first in map(itself, [value]),
    "hash": lambda value, first: hash(value) == hash(first),
    "a counter": lambda value, first: collections.Counter([value])[first],
    "sorted": lambda value, first: sorted([value, first]),
    "sorted items of a generator": lambda value, first: sorted(item for item in (value, first)),
    "max": lambda value, first: max(item for item in (value, first)) is value,
    "a sum": lambda value, first: sum((item for item in (value,)), first),
    "any": lambda value, first: any(item for item in (value,)),
    "str": lambda value, first: str(value),
    "repr": lambda value, first: repr([value]),
    "a format": lambda value, first: f"{value}|{value!r}",
    "membership": lambda value, first: "a" in value,
    "a joined text": lambda value, first: ",".join(value),
}


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        result = function(*args)
    except Exception as error:
        return type(error)
    return (type(result), repr(result))


@pytest.mark.parametrize("read", FUNCTIONS)
def test_values_that_c_code_reads_are_guarded(read):
    function = FUNCTIONS[read]
    for kind, (first, second) in VALUES.items():
        expected = [outcome(function, value, first) for value in (first, second)]
        if any(" at 0x" in str(result) for result in expected):
            continue
        for order in ((0, 1, 0), (1, 0, 1)):
            compiled = thunder.jit(lambda value, x, first=first: (function(value, first), x)[0])
            found = [outcome(compiled, (first, second)[number], X) for number in order]
            assert found == [expected[number] for number in order], (kind, order)


def test_objects_reached_by_two_paths_are_compared_at_each_call():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))
            self.chosen = self.layers[0]

        def forward(self, x):
            return x + sum(layer == self.chosen for layer in self.layers) + [*self.layers].index(self.chosen)

    model = Model()
    compiled = thunder.jit(model)
    for layer in (model.layers[0], model.layers[2], model.layers[1]):
        model.chosen = layer
        assert torch.equal(compiled(X), X + 1 + list(model.layers).index(layer))


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("search", [bisect.bisect_left, bisect.bisect_right])
def test_a_search_with_nan_matches_c(search, cache):
    def program(value, x):
        return x + search([1.0, 2.5], value) + search([math.nan], value)

    compiled = thunder.jit(program, cache=cache)
    for value in (0.5, 2.0, math.nan, 2.5, 1.0, 3.0):
        assert torch.equal(compiled(value, X), program(value, X))
