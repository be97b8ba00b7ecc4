"""Values are written as text and read back without running code."""

from __future__ import annotations

import enum

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_core.workflow.artifact.format.literals import read_literal, write_literal

LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(LITERALS)
def test_plain_data_comes_back(value):
    text = write_literal(value)
    assert text is not None
    assert read_literal(text) == value


@pytest.mark.parametrize(
    "value",
    [
        torch.device("cuda:1"),
        torch.bfloat16,
        torch.channels_last,
        torch.strided,
        range(1, 9, 2),
        frozenset({1, 2}),
        slice(1, None),
        {1},
    ],
)
def test_constants_of_torch_come_back(value):
    text = write_literal(value)
    assert text is not None
    assert read_literal(text) == value


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize("value", [object(), print, Colour.RED, [object()], torch.ones(1)])
def test_values_without_a_literal_are_not_written(value):
    assert write_literal(value) is None


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "torch.load('x')", "torch.ops", "print", "(lambda: 1)()", "1 +", "a.b", "[x for x in y]",
     "torch.device(**{})", "f'{1}'", "-'a'", "float('x', 1)", "(" * 5000, "set(range(10**9))", "set(range(1000000000))",
     "frozenset(range(1000000000))", "frozenset('abc')", "set('abc')", "set({1})", "frozenset()", "{**{}}",
     "[*range(9)]",
     "9" * 5001, "-" * 100_000 + "1", "[" * 100_000, "not " * 100_000 + "1", "a" + ".b" * 100_000, "1" + "+1" * 100_000,
     "{[]}", "{[]: 1}", "torch.device('cuda', 10**99)", "torch.device('nowhere')", "range(0, 1, 0)", "\0", "slice()"],
)  # fmt: skip
def test_anything_else_is_not_read(text):
    with pytest.raises(ValueError):
        read_literal(text)


@pytest.mark.parametrize("value", [set(), frozenset(), frozenset({1}), {1, 2}, range(10**9), {"a": {1}}])
def test_sets_and_ranges_of_any_length_come_back(value):
    assert read_literal(write_literal(value)) == value
