"""The objects that a function or the variables of a program refer to, and the side effects of a function."""

from __future__ import annotations

import functools
import gc
import io
import itertools
import operator
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from thunder_core.foundation.type_flags import HEAP_TYPE
from thunder_core.frontend.acquire.outside.paths import leads_from_random_draw
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.frontend.interpreter.bridges import BridgedIterator, Callback
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.generators import frame_of
from thunder_core.frontend.interpreter.iterators import CALLING_ITERATORS, ITERATORS_IN_C, PARTS_OF_ITERATORS
from thunder_core.frontend.interpreter.reach import REFERENTS
from thunder_core.tracing.capture.fakes import buffers
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.stored_attributes import attributes_of

# `contents_of` reads instances of these classes and of their subclasses by the entries of `REFERENTS`.
CONTAINER_CLASSES = (types.MethodType, functools.partial, list, tuple, set, frozenset, dict, deque)
# Instances of these classes are not examined further: they hold no objects of the program, or only immutable ones.
LEAF_CLASSES = (str, bytes, int, float, complex, type(None), type, types.ModuleType, torch.Tensor, SymbolicNumber)


# For each type of iterator, a function that returns the position of an iterator.
POSITIONS: dict[type, Callable[[Any], object]] = {
    **dict.fromkeys(ITERATORS_IN_C, operator.length_hint),
    # The length hint of these iterators would call `__len__` of the iterated object.
    **dict.fromkeys(CALLING_ITERATORS, lambda iterator: iterator.__reduce__()[2:]),
    enumerate: lambda iterator: iterator.__reduce__()[1][1],
    itertools.count: repr,
}
# For classes whose instances have a state in C, also for derived classes, a function that returns the state.
STATES_IN_C: dict[type, Callable[[Any], object]] = {
    random.Random: random.Random.getstate,
    io.StringIO: lambda stream: stream.closed or (stream.getvalue(), stream.tell()),
    io.BytesIO: lambda stream: stream.closed or (stream.getvalue(), stream.tell()),
}


class HeldObjects:
    """The program's objects that an object refers to, directly or indirectly.

    Functions refer to objects by closures and defaults, partials by arguments, and other objects by items and
    attributes. Outside objects, for which `is_outside` is true, are left out: the effect log has their changes.
    """

    def __init__(self, root: object, is_outside: Callable[[Any], bool]) -> None:
        self._examined: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []  # each object, its contents and state
        waiting, seen = [root], set[int]()
        while waiting:
            value = waiting.pop()
            is_leaf = isinstance(value, LEAF_CLASSES) and not is_local_class(value)
            if id(value) in seen or is_leaf or is_outside(value):
                continue
            seen.add(id(value))
            contents = tuple(all_contents_of(value))
            self._examined.append((value, contents, state_of(value)))
            waiting += contents

    @property
    def objects(self) -> list[Any]:
        """The objects, the root first."""
        return [value for value, _, _ in self._examined]

    def have_changed(self) -> bool:
        """Whether the contents or the state of one of the objects have changed since the root was examined."""
        return any(
            list(map(id, all_contents_of(value))) != list(map(id, contents)) or state_of(value) != state
            for value, contents, state in self._examined
        )


class SideEffects:
    """The side effects of a function, from the creation of this object on. Writes to tensors are not among them.

    `function` refers to all objects of the program that the function may change.
    """

    def __init__(self, run: Recording, function: object) -> None:
        self._run = run
        self._effects = tuple(run.outside.effects.effects)
        self._print_count, self._draw_count = len(run.output.printed), len(run.draws.paths)
        self._held_objects = HeldObjects(function, lambda value: run.outside.path_of(value) is not None)

    def change_objects(self) -> bool:
        """Whether the function has changed an object, also an object of the program, or has printed.

        Changes that the function has reversed do not count.
        """
        has_effects = tuple(self._run.outside.effects.effects) != self._effects
        return has_effects or len(self._run.output.printed) != self._print_count or self._held_objects.have_changed()

    def draw_numbers(self) -> bool:
        """Whether the function has drawn random numbers outside of PyTorch, which the prologue draws at each call."""
        return any(map(leads_from_random_draw, self._run.draws.paths[self._draw_count :]))


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


def all_contents_of(value: object) -> Iterator[Any]:
    """Yield the objects that an object refers to directly, also those of iterators, generators and local classes."""
    if isinstance(value, BridgedIterator | Callback):  # objects of the interpreter around objects of the program
        yield from value.__reduce__()[1]
        return
    yield from contents_of(value)
    if type(value) in PARTS_OF_ITERATORS:
        yield from gc.get_referents(value)
    elif (frame := frame_of(value)) is not None:
        yield from (*frame.fast, *frame.stack)
    elif isinstance(value, type):
        yield from vars(value).values()
    if is_local_class(type(value)):
        yield type(value)


def state_of(value: Any) -> tuple[Any, ...]:
    """Return the state of an object that is not among its contents: names, the position of an iterator, or bytes."""
    names = tuple(vars(value) if isinstance(value, type) else attributes_of(value))
    position = POSITIONS.get(type(value))
    if position is not None:
        return *names, position(value)
    if (frame := frame_of(value)) is not None:
        return *names, frame.pc, frame.suspended
    if buffers.is_buffer(value):
        return *names, buffers.contents_of(value)
    return *names, *(state(value) for kind, state in STATES_IN_C.items() if isinstance(value, kind))


def is_local_class(value: object) -> bool:
    """Whether a value is a class that is not an attribute of its module, so that the program may have created it."""
    if not isinstance(value, type) or not value.__flags__ & HEAP_TYPE:
        return False
    owner: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        owner = getattr(owner, "__dict__", {}).get(name)
    return owner is not value


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
