"""A program that hashes tensors or objects: whether two of them are the same is found out in each call."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder

FIRST, SECOND, X = torch.zeros(3), torch.zeros(3), torch.ones(2)


def stored(table, key):
    table[key] = 1
    return len(table)


FUNCTIONS = {
    "a set": lambda first, second: first in {second},
    "the size of a set": lambda first, second: len({first, second}),
    "a set from a list": lambda first, second: len({*[first, second]}),
    "the constructor": lambda first, second: len(set([first, second])),  # noqa: C405
    "a frozen set": lambda first, second: first in frozenset((second,)),
    "a dict": lambda first, second: {second: 1}.get(first),
    "the size of a dict": lambda first, second: len({first: 1, second: 2}),
    "an item": lambda first, second: stored({second: 1}, first),
    "keys": lambda first, second: len(dict.fromkeys((first, second))),
    "pairs": lambda first, second: len(dict([(first, 1), (second, 2)])),  # noqa: C406
    "comprehensions": lambda first, second: len({tensor: 1 for tensor in (first, second)}),  # noqa: C420
    "tuples in a set": lambda first, second: (1, first) in {(1, second)},
    "a union": lambda first, second: len({first} | {second}),
    "disjoint sets": lambda first, second: {first}.isdisjoint({second}),
    "hashes": lambda first, second: hash(first) == hash(second),
    "hashes by map": lambda first, second: len({*map(hash, (first, second))}),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize(("first", "second"), [(FIRST, SECOND), (object(), object())], ids=["tensors", "objects"])
@pytest.mark.parametrize("different_first", [True, False])
def test_hashed_objects_are_distinguished_in_each_call(function, first, second, different_first):
    compiled = thunder.jit(lambda *arguments: (function(*arguments), X + 1))
    calls = [(first, second), (first, first)]
    for arguments in 2 * (calls if different_first else calls[::-1]):
        assert compiled(*arguments)[0] == function(*arguments)
    assert thunder.cache_misses(compiled) == 2


def test_parameters_in_a_list_are_distinguished():
    def function(parameters):
        return len(set(parameters)), parameters[0] + 1

    compiled = thunder.jit(function)
    for parameters in ([FIRST, SECOND], [FIRST, FIRST], [SECOND, FIRST]):
        assert compiled(parameters)[0] == function(parameters)[0]


def test_calls_of_pytorch_alone_do_not_tell_tensors_apart():
    compiled = thunder.jit(lambda first, second: torch.add(2 * first, second).clamp(min=first) + first @ second)
    for second in (SECOND, FIRST):
        compiled(FIRST, second)
    assert thunder.cache_misses(compiled) == 1
