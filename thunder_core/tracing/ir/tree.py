"""Walking the nested tuples, lists, dicts and slices that arguments and results are made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch

Leaf = Any
SEQUENCES = (tuple, list)


class PlaceholderSize(tuple[Any, ...]):
    """A `torch.Size` in whose place something other than integers stands, such as the names of a trace."""

    __slots__ = ()


def leaves(tree: Any) -> Iterator[Leaf]:
    """Every leaf of the tree, from left to right."""
    found: list[Leaf] = []
    _add_leaves((tree,), found)
    return iter(found)


def _add_leaves(trees: Iterable[Any], found: list[Leaf]) -> None:
    """Append the leaves of some trees. (Generators within generators take three times as long.)"""
    for tree in trees:
        kind = type(tree)
        if kind is tuple or kind is list:
            _add_leaves(tree, found)
        elif kind is dict:
            _add_leaves(tree.values(), found)
        elif kind is slice:
            _add_leaves((tree.start, tree.stop, tree.step), found)
        elif issubclass(kind, SEQUENCES):
            _add_leaves(tree, found)
        else:
            found.append(tree)


def structure(tree: Any) -> Hashable:
    """The classes of the containers of a tree, and where in it they are; None for a leaf."""
    if isinstance(tree, tuple | list):
        return (type(tree), *map(structure, tree))
    if type(tree) is dict:
        return (dict, *((key, structure(item)) for key, item in tree.items()))
    return slice if type(tree) is slice else None


def replace_leaves(tree: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """The tree with each leaf replaced by `change(leaf)`; a subclass of tuple or list stays of its class."""
    return _replaced(tree, change, like)


def replace_leaves_in_plain(tree: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """The tree with each leaf replaced by `change(leaf)`; subclasses of tuple and list become plain."""
    return _replaced(tree, change, plain_like)


def _replaced(tree: Any, change: Callable[[Leaf], Leaf], rebuilt: Callable[[Any, list[Any]], Any]) -> Any:
    kind = type(tree)
    if kind is tuple:
        return tuple([_replaced(item, change, rebuilt) for item in tree])
    if kind is list:
        return [_replaced(item, change, rebuilt) for item in tree]
    if kind is dict:
        return {key: _replaced(item, change, rebuilt) for key, item in tree.items()}
    if kind is slice:
        return slice(*[_replaced(item, change, rebuilt) for item in (tree.start, tree.stop, tree.step)])
    if issubclass(kind, SEQUENCES):
        return rebuilt(tree, [_replaced(item, change, rebuilt) for item in tree])
    return change(tree)


def plain_like(tree: Any, items: Sequence[Any]) -> Any:
    """A plain tuple or list of these items, as the tree is one or the other."""
    return tuple(items) if isinstance(tree, tuple) else list(items)


def like(tree: Any, items: Sequence[Any]) -> Any:
    """A tuple or list of the class of the tree, with its attributes and these items."""
    kind = type(tree)
    if kind in (torch.Size, PlaceholderSize):
        is_size = all(type(item) is int or isinstance(item, torch.SymInt) for item in items)
        return torch.Size(items) if is_size else PlaceholderSize(items)
    return of_class(kind, items, getattr(tree, "__dict__", {}))


def of_class(kind: Any, items: Sequence[Any], attributes: Any = ()) -> Any:
    """A tuple or list of a class, made past what the class does when it is called."""
    made: Any
    if issubclass(kind, list):
        made = list.__new__(kind)
        list.extend(made, items)
    elif hasattr(kind, "n_sequence_fields"):  # a class of C with named items, which `tuple.__new__` does not make
        made = kind(items)
    else:
        made = tuple.__new__(kind, items)
    if attributes:
        vars(made).update(attributes)
    return made
