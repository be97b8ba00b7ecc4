"""A model's output as named tensors and a description of the structure around them, for any type of output."""

from __future__ import annotations

import dataclasses
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils import _pytree

from thunder_core.foundation.errors import NotComparable

ROOT = "output"
CONSTANTS = (
    *(bool, int, str, bytes, bytearray, complex, range, slice, type(None), type(...)),
    *(torch.dtype, torch.device, torch.Size),
)
NUMBER_KINDS = "biufc"  # of NumPy dtypes: booleans and numbers, which can become tensors
OPAQUE = (torch.nn.Module, type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)

Child = tuple[str, object]


@dataclass
class Leaves:
    """The tensors of an output by path, and its structure by path: types and constants."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    structure: dict[str, str] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)
    """The types of objects whose contents cannot be compared, by path."""

    def adopt(self, child: Leaves) -> None:
        """Add the leaves of a child; raise `NotComparable` for a path that already exists."""
        for taken in (self.tensors.keys() | self.structure.keys()) & (child.tensors.keys() | child.structure.keys()):
            raise NotComparable(
                f"two values of the model's output have the name `{taken}`, so one of them would not be compared",
                fix="use keys that also differ when they are joined with dots",
            )
        self.tensors |= child.tensors
        self.structure |= child.structure
        self.opaque |= child.opaque


def leaves_of(output: object) -> Leaves:
    """Return the tensors of `output`, with names as in Python: `logits`, `past_key_values.layers.0.keys`."""
    return _Walk().visit("", output)


class _Walk:
    """One walk over an output. It records the ancestors of an object to stop at cycles, and objects without tensors."""

    def __init__(self) -> None:
        self.ancestors: set[int] = set()
        self.barren: set[int] = set()

    def visit(self, path: str, value: object) -> Leaves:
        if isinstance(value, torch.Tensor):
            return Leaves(tensors={path or ROOT: value})
        if isinstance(value, float):
            return Leaves(tensors={path or ROOT: torch.tensor(value, dtype=torch.float64)})
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in NUMBER_KINDS:
            return Leaves(tensors={path or ROOT: torch.from_numpy(np.array(value))})
        if isinstance(value, CONSTANTS):
            return Leaves(structure={path: repr(value)})
        if id(value) in self.ancestors:
            return Leaves(structure={path: "a cycle"})
        return self.descend(path, value)

    def descend(self, path: str, value: object) -> Leaves:
        leaves = Leaves(structure={path: type(value).__qualname__})
        children = next((children for applies, children in CONTAINERS if applies(value)), None)
        if children is None or id(value) in self.barren:
            return leaves
        inside, members = Leaves(), list(children(value))
        if children is _attributes and not members:
            leaves.opaque[path] = type(value).__qualname__
        self.ancestors.add(id(value))
        for name, child in members:
            inside.adopt(self.visit(f"{path}.{name}" if path else name, child))
        self.ancestors.discard(id(value))
        if children is _attributes and not inside.tensors:
            self.barren.add(id(value))
        else:
            leaves.adopt(inside)
        return leaves


def _items(value: object) -> Iterator[Child]:
    """Yield the items with their keys as strings, or as Python literals if two keys have the same string."""
    if isinstance(value, Mapping):
        counts = Counter(map(str, value))
        yield from ((str(key) if counts[str(key)] == 1 else repr(key), child) for key, child in value.items())


def _elements(value: object) -> Iterator[Child]:
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None) or range(len(value))
        yield from ((str(name), child) for name, child in zip(names, value, strict=True))


def _members(value: object) -> Iterator[Child]:
    """Yield the constants of a set, sorted; a set cannot contain tensors here."""
    if isinstance(value, (set, frozenset)):
        yield from ((str(number), text) for number, text in enumerate(sorted(map(repr, value))))


def _is_set_of_constants(value: object) -> bool:
    return isinstance(value, (set, frozenset)) and all(isinstance(item, (*CONSTANTS, float)) for item in value)


def _nodes(value: object) -> Iterator[Child]:
    children, _ = _pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
    yield from ((str(number), child) for number, child in enumerate(children))


def _fields(value: object) -> Iterator[Child]:
    if dataclasses.is_dataclass(value):
        yield from ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if hasattr(value, f.name))


def _attributes(value: object) -> Iterator[Child]:
    yield from getattr(value, "__dict__", {}).items()
    # A class without its own `__slots__` has the attribute of its base.
    slots = dict.fromkeys(slot for base in type(value).__mro__ for slot in getattr(base, "__slots__", ()))
    yield from ((slot, getattr(value, slot)) for slot in slots if slot != "__dict__" and hasattr(value, slot))


# The first entry that applies is used; if no entry applies, only the type of the object is compared.
CONTAINERS: tuple[tuple[Callable[[object], bool], Callable[[object], Iterator[Child]]], ...] = (
    (lambda value: isinstance(value, Mapping), _items),
    (lambda value: isinstance(value, (list, tuple)), _elements),
    (_is_set_of_constants, _members),
    (lambda value: type(value) in _pytree.SUPPORTED_NODES, _nodes),
    (dataclasses.is_dataclass, _fields),
    (lambda value: not isinstance(value, OPAQUE), _attributes),
)


def require_same_structure(optimized: Leaves, eager: Leaves) -> None:
    """Raise NotComparable at the first path whose type, constant, dtype or shape differs from eager's."""
    mine, theirs = _describe(optimized), _describe(eager)
    for path in [*theirs, *(path for path in mine if path not in theirs)]:
        if mine.get(path) != theirs.get(path):
            raise NotComparable(
                f"`{path or ROOT}` is {mine.get(path, 'missing')} in the optimized model and "
                f"{theirs.get(path, 'missing')} in eager",
                fix="this is a bug in the recipe: please report it; a recipe must not change the output's structure",
            )


def _describe(leaves: Leaves) -> dict[str, str]:
    tensors = {path: f"a {dtype_name(t.dtype)} tensor of shape {list(t.shape)}" for path, t in leaves.tensors.items()}
    return leaves.structure | tensors


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")
