"""A model's output as named tensors and the structure that holds them, whatever it is made of."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree

from thunder_core.errors import NotComparable

ROOT = "output"
CONSTANTS = (bool, int, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)
OPAQUE = (torch.nn.Module, type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)

Child = tuple[str, object]


@dataclass
class Leaves:
    """The tensors of an output by path, and what else it consists of: types and constants, by path too."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    structure: dict[str, str] = field(default_factory=dict)

    def adopt(self, other: Leaves) -> None:
        """Add what was found further down."""
        self.tensors |= other.tensors
        self.structure |= other.structure


def leaves_of(output: object) -> Leaves:
    """The tensors of `output`, named as one would write them: `logits`, `past_key_values.layers.0.keys`."""
    return _Walk().visit("", output)


class _Walk:
    """One walk over an output: knows where it came from, so that a cycle ends, and where nothing was found."""

    def __init__(self) -> None:
        self.ancestors: set[int] = set()
        self.barren: set[int] = set()

    def visit(self, path: str, value: object) -> Leaves:
        if isinstance(value, torch.Tensor):
            return Leaves(tensors={path or ROOT: value})
        if isinstance(value, float):
            return Leaves(tensors={path or ROOT: torch.tensor(value, dtype=torch.float64)})
        if isinstance(value, CONSTANTS):
            return Leaves(structure={path: repr(value)})
        if id(value) in self.ancestors:
            return Leaves(structure={path: "a cycle"})
        return self.descend(path, value)

    def descend(self, path: str, value: object) -> Leaves:
        found = Leaves(structure={path: type(value).__qualname__})
        children = next((children for applies, children in CONTAINERS if applies(value)), None)
        if children is None or id(value) in self.barren:
            return found
        inside = Leaves()
        self.ancestors.add(id(value))
        for name, child in children(value):
            inside.adopt(self.visit(f"{path}.{name}" if path else name, child))
        self.ancestors.discard(id(value))
        if children is _attributes and not inside.tensors:
            self.barren.add(id(value))
        else:
            found.adopt(inside)
        return found


def _items(value: object) -> Iterator[Child]:
    if isinstance(value, Mapping):
        yield from ((str(key), child) for key, child in value.items())


def _elements(value: object) -> Iterator[Child]:
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None) or range(len(value))
        yield from ((str(name), child) for name, child in zip(names, value, strict=True))


def _nodes(value: object) -> Iterator[Child]:
    children, _ = _pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
    yield from ((str(number), child) for number, child in enumerate(children))


def _fields(value: object) -> Iterator[Child]:
    if dataclasses.is_dataclass(value):
        yield from ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if hasattr(value, f.name))


def _attributes(value: object) -> Iterator[Child]:
    yield from getattr(value, "__dict__", {}).items()
    slots = (slot for base in type(value).__mro__ for slot in getattr(base, "__slots__", ()))
    yield from ((slot, getattr(value, slot)) for slot in slots if slot != "__dict__" and hasattr(value, slot))


# The first that applies decides; what none applies to is compared by its type alone.
CONTAINERS: tuple[tuple[Callable[[object], bool], Callable[[object], Iterator[Child]]], ...] = (
    (lambda value: isinstance(value, Mapping), _items),
    (lambda value: isinstance(value, (list, tuple)), _elements),
    (lambda value: type(value) in _pytree.SUPPORTED_NODES, _nodes),
    (dataclasses.is_dataclass, _fields),
    (lambda value: not isinstance(value, OPAQUE), _attributes),
)


def require_same_structure(optimized: Leaves, eager: Leaves) -> None:
    """Raise NotComparable at the first path whose type, constant, dtype or shape is not eager's."""
    mine, theirs = _described(optimized), _described(eager)
    for path in [*theirs, *(path for path in mine if path not in theirs)]:
        if mine.get(path) != theirs.get(path):
            raise NotComparable(
                f"`{path or ROOT}` is {mine.get(path, 'missing')} in the optimized model and "
                f"{theirs.get(path, 'missing')} in eager",
                fix="report this as a bug, with the recipe's name: a recipe may change values, not what holds them",
            )


def _described(leaves: Leaves) -> dict[str, str]:
    tensors = {path: f"a {dtype_name(t.dtype)} tensor of shape {list(t.shape)}" for path, t in leaves.tensors.items()}
    return leaves.structure | tensors


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")
