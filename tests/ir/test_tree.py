"""Nested arguments: their leaves, and the same tree with other leaves."""

from __future__ import annotations

from collections import namedtuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_core.tracing.ir.tree import leaves, replace_leaves, replace_leaves_in_plain

TREES = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(slice, inner, inner, inner)
    ),
    max_leaves=10,
)
Pair = namedtuple("Pair", "left right")


def test_leaves_come_from_left_to_right():
    assert list(leaves(([1, (2,)], {"a": 3, "b": [4]}, slice(5, None, 6)))) == [1, 2, 3, 4, 5, None, 6]


def test_strings_and_sets_are_leaves():
    assert list(leaves(["ab", {1}])) == ["ab", {1}]


def test_subclasses_of_tuple_are_walked_and_kept():
    assert list(leaves(Pair(1, [2]))) == [1, 2]
    replaced = replace_leaves(Pair(1, [2]), str)
    assert replaced == ("1", ["2"])
    assert type(replaced) is Pair
    assert type(replace_leaves(torch.Size([1, 2]), int)) is torch.Size
    maximum = torch.ones(2, 2).max(0)
    assert type(replace_leaves(maximum, lambda leaf: 1)) is type(maximum)


def test_subclasses_of_tuple_become_plain_on_request():
    assert type(replace_leaves_in_plain(Pair(1, [2]), str)) is tuple
    assert type(replace_leaves_in_plain(torch.Size([1, 2]), int)) is tuple


def test_size_with_leaves_that_are_not_integers_is_rebuilt_as_a_size():
    names = replace_leaves(torch.Size([1, 2]), str)
    assert names == ("1", "2")
    assert replace_leaves(names, int) == torch.Size([1, 2])
    assert type(replace_leaves(names, int)) is torch.Size


@given(TREES)
def test_replacing_each_leaf_by_itself_changes_nothing(tree):
    assert replace_leaves(tree, lambda leaf: leaf) == tree


@given(TREES)
def test_every_leaf_is_replaced_once_and_in_order(tree):
    seen: list[object] = []
    replace_leaves(tree, lambda leaf: seen.append(leaf))
    assert seen == list(leaves(tree))
