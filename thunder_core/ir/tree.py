"""Walking the nested tuples, lists, dicts and slices that arguments and results are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Leaf = Any


def leaves(tree: Any) -> Iterator[Leaf]:
    """Every leaf of the tree, from left to right."""
    kind = type(tree)
    if kind is tuple or kind is list:
        for item in tree:
            yield from leaves(item)
    elif kind is dict:
        for item in tree.values():
            yield from leaves(item)
    elif kind is slice:
        yield from leaves((tree.start, tree.stop, tree.step))
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree


def replace_leaves(tree: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """The tree with each leaf replaced by `change(leaf)`; subclasses of tuple and list become plain."""
    kind = type(tree)
    if kind is tuple:
        return tuple([replace_leaves(item, change) for item in tree])
    if kind is list:
        return [replace_leaves(item, change) for item in tree]
    if kind is dict:
        return {key: replace_leaves(item, change) for key, item in tree.items()}
    if kind is slice:
        return slice(*[replace_leaves(item, change) for item in (tree.start, tree.stop, tree.step)])
    if isinstance(tree, tuple):
        return tuple([replace_leaves(item, change) for item in tree])
    if isinstance(tree, list):
        return [replace_leaves(item, change) for item in tree]
    return change(tree)
