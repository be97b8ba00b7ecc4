"""The objects that a function or the variables of a program refer to, and whether they have changed."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.reach import REFERENTS
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.stored_attributes import attributes_of

# `contents_of` reads instances of these classes and of their subclasses by the entries of `REFERENTS`.
CONTAINER_CLASSES = (types.MethodType, functools.partial, list, tuple, set, frozenset, dict, deque)
# Instances of these classes are not examined further: they hold no objects of the program, or only immutable ones.
LEAF_CLASSES = (str, bytes, int, float, complex, type(None), type, types.ModuleType, torch.Tensor, SymbolicNumber)


class HeldObjects:
    """The program's objects that an object refers to, directly or indirectly.

    Functions refer to objects by closures and defaults, partials by arguments, and other objects by items and
    attributes. Outside objects, for which `is_outside` is true, are left out: the effect log has their changes.
    """

    def __init__(self, root: object, is_outside: Callable[[Any], bool]) -> None:
        self._contents: list[tuple[Any, tuple[Any, ...]]] = []
        waiting, seen = [root], set[int]()
        while waiting:
            value = waiting.pop()
            if id(value) in seen or isinstance(value, LEAF_CLASSES) or is_outside(value):
                continue
            seen.add(id(value))
            contents = tuple(contents_of(value))
            self._contents.append((value, contents))
            waiting += contents

    @property
    def objects(self) -> list[Any]:
        """The objects, the root first."""
        return [value for value, _ in self._contents]

    def have_changed(self) -> bool:
        """Whether the contents of one of the objects have changed since the root was examined."""
        return any(list(map(id, contents_of(value))) != list(map(id, contents)) for value, contents in self._contents)


def contents_of(value: object) -> Iterator[Any]:
    """Yield the objects that an object refers to directly."""
    if isinstance(value, types.FunctionType):
        yield from (*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    elif isinstance(value, types.CellType):
        with suppress(ValueError):  # an empty cell
            yield value.cell_contents
    else:
        kind = next((kind for kind in CONTAINER_CLASSES if isinstance(value, kind)), None)
        yield from () if kind is None else REFERENTS[kind](value)
    yield from attributes_of(value).values()


def reachable_values(value: object) -> Iterator[Any]:
    """Yield an object and all objects that it refers to, directly or indirectly, each once."""
    waiting, seen = [value], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting += () if isinstance(value, LEAF_CLASSES) else contents_of(value)


def refers_to_tensors(value: object) -> bool:
    """Whether an object is a module, or refers, directly or indirectly, to a module, a tensor or a symbolic number."""
    return any(isinstance(inner, torch.Tensor | torch.nn.Module | SymbolicNumber) for inner in reachable_values(value))


def is_held(frame: Frame | None, value: object) -> bool:
    """Whether a frame or one of its callers has a value in a variable, also within a container or an object.

    If the answer is False, the value may be alive only because tracing holds it.
    """
    variables: list[Any] = []
    while frame is not None:
        variables += (*frame.fast, *frame.stack, frame.names)
        frame = frame.caller
    return any(held is value for held in reachable_values(variables))
