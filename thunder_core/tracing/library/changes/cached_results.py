"""The check of prologues that a function under `functools.lru_cache` returns the result which a program computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from thunder_core.tracing.library.objects import cached_value, same_values

LEAF = "*"  # stands for a leaf in the text of a structure
SIZE = "torch.Size"  # the first item of the template of a `torch.Size`


def has_cached(
    cached: Callable[..., Any], names: tuple[str, ...], templates: tuple[Any, ...], structure: str, *operands: Any
) -> bool:
    """Whether a function under `functools.lru_cache` returns a result with this structure and these leaves.

    `templates` are the arguments with indices of `operands` in place of leaves. The last arguments are keyword
    arguments with these `names`. The operands after those of the arguments are the leaves of the result.
    """
    result = cached_value(cached, names, *(fill(template, operands) for template in templates))
    found = [*leaves_of(result)]
    return structure_of(result) == structure and all(map(same_values, found, operands[len(operands) - len(found) :]))


def fill(template: Any, operands: tuple[Any, ...]) -> Any:
    """Return an argument: a template with the operands at its indices."""
    if type(template) is int:
        return operands[template]
    if template[:1] == (SIZE,):
        return torch.Size([fill(item, operands) for item in template[1:]])
    return tuple(fill(item, operands) for item in template)


def structure_of(tree: Any) -> str:
    """Return the classes of nested tuples, lists and dicts, and the keys of the dicts, as text."""
    if type(tree) is dict:
        return f"{{{', '.join(f'{key!r}: {structure_of(item)}' for key, item in tree.items())}}}"
    if type(tree) in (tuple, list):
        return f"{type(tree).__name__}({', '.join(map(structure_of, tree))})"
    return LEAF


def leaves_of(tree: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples, lists and dicts, from left to right."""
    if type(tree) not in (tuple, list, dict):
        yield tree
        return
    for item in tree.values() if type(tree) is dict else tree:
        yield from leaves_of(item)
