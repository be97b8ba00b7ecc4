"""Traverse the nested tuples, lists, dicts and slices of arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch

from thunder_core.foundation.type_flags import BASE_TYPE

Leaf = Any
SEQUENCES = (tuple, list)


class PlaceholderSize(tuple[Any, ...]):
    """A `torch.Size` whose items are not integers but, for example, names in a trace."""

    __slots__ = ()


def leaves(tree: object) -> Iterator[Leaf]:
    """Return every leaf of the tree, from left to right. A container that contains itself is entered once."""
    result: list[Leaf] = []
    try:
        _add_leaves((tree,), result)
    except RecursionError:
        return _leaves_of_cyclic(tree)
    return iter(result)


def _leaves_of_cyclic(tree: object) -> Iterator[Leaf]:
    """Yield the leaves of a tree whose containers may contain themselves, and enter each container once."""
    waiting, entered = [tree], set[int]()
    while waiting:
        part = waiting.pop()
        parts = _parts_of(part)
        if parts is None:
            yield part
        elif id(part) not in entered:
            entered.add(id(part))
            waiting += reversed([*parts])


def contains_itself(tree: object) -> bool:
    """Whether a container of the tree contains itself, directly or inside of other containers."""
    try:
        _add_leaves((tree,), [])
    except RecursionError:
        return _is_cyclic(tree)
    return False


def _is_cyclic(tree: object) -> bool:
    enclosing, waiting, finished = set[int](), [(tree, False)], set[int]()
    while waiting:
        part, is_left = waiting.pop()
        parts = _parts_of(part)
        if is_left:
            enclosing.discard(id(part))
            finished.add(id(part))
        elif parts is not None and id(part) not in finished:
            if id(part) in enclosing:
                return True
            enclosing.add(id(part))
            waiting += [(part, True), *((inner, False) for inner in parts)]
    return False


def _parts_of(tree: Any) -> Iterable[Any] | None:
    """Return the parts of a container of a tree; None for a leaf."""
    kind = type(tree)
    if issubclass(kind, SEQUENCES):
        return stored_items(tree)
    if kind is slice:
        return (tree.start, tree.stop, tree.step)
    return tree.values() if kind is dict else None


def _add_leaves(trees: Iterable[Any], result: list[Leaf]) -> None:
    """Append the leaves of trees to a list, which takes a third of the time of nested generators."""
    for tree in trees:
        kind = type(tree)
        if kind is tuple or kind is list:
            _add_leaves(tree, result)
        elif kind is dict:
            _add_leaves(tree.values(), result)
        elif kind is slice:
            _add_leaves((tree.start, tree.stop, tree.step), result)
        elif issubclass(kind, SEQUENCES):
            _add_leaves(stored_items(tree), result)
        else:
            result.append(tree)


def stored_items(sequence: Any) -> Iterator[Any]:
    """Return an iterator over the stored items of a tuple or list, without running an `__iter__` of a subclass."""
    return tuple.__iter__(sequence) if issubclass(type(sequence), tuple) else list.__iter__(sequence)


def structure(tree: object) -> Hashable:
    """Return the classes and positions of the containers of a tree; None for a leaf."""
    if issubclass(type(tree), SEQUENCES):
        return (type(tree), *map(structure, stored_items(tree)))
    if type(tree) is dict:
        return (dict, *((key, structure(item)) for key, item in tree.items()))
    return slice if type(tree) is slice else None


def replace_leaves(tree: object, change: Callable[[Leaf], Leaf]) -> Any:
    """Return the tree with each leaf replaced by `change(leaf)`; subclasses of tuple and list keep their class."""
    return _replace(tree, change, like)


def replace_leaves_in_plain(tree: object, change: Callable[[Leaf], Leaf]) -> Any:
    """Return the tree with each leaf replaced by `change(leaf)`; subclasses of tuple and list become plain."""
    return _replace(tree, change, plain_like)


def _replace(tree: Any, change: Callable[[Leaf], Leaf], rebuilt: Callable[[Any, list[Any]], Any]) -> Any:
    kind = type(tree)
    if kind is tuple:
        return tuple([_replace(item, change, rebuilt) for item in tree])
    if kind is list:
        return [_replace(item, change, rebuilt) for item in tree]
    if kind is dict:
        return {key: _replace(item, change, rebuilt) for key, item in tree.items()}
    if kind is slice:
        return slice(*[_replace(item, change, rebuilt) for item in (tree.start, tree.stop, tree.step)])
    if issubclass(kind, SEQUENCES):
        return rebuilt(tree, [_replace(item, change, rebuilt) for item in stored_items(tree)])
    return change(tree)


def plain_like(tree: object, items: Sequence[Any]) -> Any:
    """Return a plain tuple or list of these items, depending on the kind of the tree."""
    return tuple(items) if isinstance(tree, tuple) else list(items)


def like(tree: object, items: Sequence[Any]) -> Any:
    """Return a tuple or list with the class and attributes of the tree, and these items."""
    kind = type(tree)
    if kind in (torch.Size, PlaceholderSize):
        is_size = all(type(item) is int or isinstance(item, torch.SymInt) for item in items)
        return torch.Size(items) if is_size else PlaceholderSize(items)
    return of_class(kind, items, getattr(tree, "__dict__", {}))


def of_class(kind: Any, items: Sequence[Any], attributes: Any = ()) -> Any:
    """Return a tuple or list of a class, without running the class's own constructor."""
    instance: Any
    if issubclass(kind, list):
        instance = list.__new__(kind)
        list.extend(instance, items)
    elif is_struct_sequence(kind):  # `tuple.__new__` refuses such a class
        instance = kind(items)
    else:
        instance = tuple.__new__(kind, items)
    if attributes:
        vars(instance).update(attributes)
    return instance


def is_struct_sequence(kind: type) -> bool:
    """Whether a class is a C class of tuples with named items, such as the class of the result of `torch.max`.

    No class can derive from such a class, which distinguishes it from Python classes with attributes of the same names.
    """
    return hasattr(kind, "n_sequence_fields") and not kind.__flags__ & BASE_TYPE
