"""Convert a model's output of any type to named tensors, and a description of the structure around them."""

from __future__ import annotations

import dataclasses
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils import _pytree

from thunder_core.foundation.errors import NotComparable
from thunder_core.tracing.ir.proxy import dtype_name

ROOT = "output"
CONSTANTS = (
    *(bool, int, str, bytes, bytearray, complex, range, slice, type(None), type(...)),
    *(torch.dtype, torch.device, torch.Size),
)
NUMBER_KINDS = "biufc"  # the kinds of NumPy dtypes that can become tensors: booleans and numbers
# Types whose attributes are not read; only the type is compared.
COMPARED_BY_TYPE = (
    *(torch.nn.Module, type),
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType),
)

Child = tuple[str, object]


@dataclass
class Leaves:
    """The tensors of an output by path, and its structure by path: types and constants."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    structure: dict[str, str] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)
    """The types of objects that have no readable attributes, by path. The report names them."""

    def adopt(self, child: Leaves) -> None:
        """Add the leaves of a child; raise `NotComparable` for a path that already exists."""
        for path in (self.tensors.keys() | self.structure.keys()) & (child.tensors.keys() | child.structure.keys()):
            raise NotComparable(
                f"two values of the model's output have the name `{path}`, so one of them would not be compared",
                fix="rename a key: paths join keys with dots, so "
                '`{"a.b": ...}` and `{"a": {"b": ...}}` have the same name',
            )
        self.tensors |= child.tensors
        self.structure |= child.structure
        self.opaque |= child.opaque


def leaves_of(output: object) -> Leaves:
    """Return the leaves of `output`.

    A path joins attribute names, keys and indices with dots: `past_key_values.layers.0.keys`.
    """
    return _OutputWalk().visit("", output)


class _OutputWalk:
    """One walk over an output.

    `ancestors` has the ids of the objects around the current object, to stop at cycles. `without_tensors` has the
    objects whose attributes contain no tensor, by id; their attributes are not visited again. It keeps these objects
    alive, because a later object could get the id of a freed object.
    """

    def __init__(self) -> None:
        self.ancestors: set[int] = set()
        self.without_tensors: dict[int, object] = {}

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
        if children is None or id(value) in self.without_tensors:
            return leaves
        inside, members = Leaves(), list(children(value))
        if children is _attributes and not members:
            leaves.opaque[path] = type(value).__qualname__
        self.ancestors.add(id(value))
        for name, child in members:
            inside.adopt(self.visit(f"{path}.{name}" if path else name, child))
        self.ancestors.discard(id(value))
        if children is _attributes and not inside.tensors:
            # An object without tensors is compared by its type only.
            self.without_tensors[id(value)] = value
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
    """Yield the literals of a set's members, sorted. Only sets of constants and floats are handled here."""
    if isinstance(value, (set, frozenset)):
        yield from ((str(number), text) for number, text in enumerate(sorted(map(repr, value))))


def _is_set_of_constants(value: object) -> bool:
    return isinstance(value, (set, frozenset)) and all(isinstance(item, (*CONSTANTS, float)) for item in value)


def _pytree_children(value: object) -> Iterator[Child]:
    children, _ = _pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
    yield from ((str(number), child) for number, child in enumerate(children))


def _fields(value: object) -> Iterator[Child]:
    if dataclasses.is_dataclass(value):
        yield from ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if hasattr(value, f.name))


def _attributes(value: object) -> Iterator[Child]:
    yield from getattr(value, "__dict__", {}).items()
    for base in type(value).__mro__:
        if "__slots__" in vars(base):
            yield from _slots(value, base)


def _slots(value: object, base: type) -> Iterator[Child]:
    """Yield the slots of a base class that have a value; the name of a private slot begins with the class's name."""
    for name, slot in vars(base).items():
        if isinstance(slot, types.MemberDescriptorType):
            with suppress(AttributeError):  # the slot has no value
                yield name, slot.__get__(value)


# The first entry that applies is used; if no entry applies, only the type of the object is compared.
CONTAINERS: tuple[tuple[Callable[[object], bool], Callable[[object], Iterator[Child]]], ...] = (
    (lambda value: isinstance(value, Mapping), _items),
    (lambda value: isinstance(value, (list, tuple)), _elements),
    (_is_set_of_constants, _members),
    (lambda value: type(value) in _pytree.SUPPORTED_NODES, _pytree_children),
    (dataclasses.is_dataclass, _fields),
    (lambda value: not isinstance(value, COMPARED_BY_TYPE), _attributes),
)


def require_same_structure(optimized: Leaves, eager: Leaves) -> None:
    """Raise `NotComparable` at the first path whose type, constant, dtype or shape differs between both outputs.

    `optimized` has the leaves of the optimized model's output, and `eager` the leaves of eager PyTorch's output.
    """
    optimized_facts, eager_facts = _facts(optimized), _facts(eager)
    for path in [*eager_facts, *(path for path in optimized_facts if path not in eager_facts)]:
        if optimized_facts.get(path) != eager_facts.get(path):
            raise NotComparable(
                f"`{path or ROOT}` is {optimized_facts.get(path, 'missing')} in the optimized model and "
                f"{eager_facts.get(path, 'missing')} in eager",
                fix="this is a bug in the recipe: please report it; a recipe must not change the output's structure",
            )


def _facts(leaves: Leaves) -> dict[str, str]:
    tensors = {
        path: f"a tensor of {dtype_name(t.dtype)} and shape {list(t.shape)}" for path, t in leaves.tensors.items()
    }
    return leaves.structure | tensors
