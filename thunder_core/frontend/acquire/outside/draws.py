"""Random numbers from elsewhere than PyTorch: the program's draws, which the prologue makes again at each call."""

from __future__ import annotations

import copy
import functools
import random
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from thunder_core.frontend.acquire.outside.drawing_functions import NeedsDrawingFunction, outermost_drawing
from thunder_core.frontend.acquire.outside.native_kinds import NativeAnswer, answer_of
from thunder_core.frontend.acquire.outside.object_guards import Length
from thunder_core.frontend.acquire.outside.paths import Path, leads_from_draw
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.frontend.acquire.outside.reductions import is_of
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.tree import leaves
from thunder_core.tracing.library.draws import Fresh, fresh_value, restore_of

PYTHON = "random._inst"
NUMPY = "numpy.random.mtrand._rand"
STATES = frozenset({"getstate", "get_state"})  # methods whose results are given back, and not computed with
CONTAINERS = (tuple, list, dict)
ARRAYS = ("numpy.ndarray", "numpy.generic")


@dataclass(frozen=True, eq=False)
class Draw:
    """A call that draws: of a method of a generator, which is the `owner`, or of a function.

    The owner is a path, or the name of a generator of the process; arguments are paths, constants and containers.
    """

    owner: Path | str | None
    how: str
    called: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    number: int

    def __str__(self) -> str:
        return f"draw {self.number} ({self.name})"

    @property
    def name(self) -> str:
        """The name of what is called."""
        called = self.called.value if isinstance(self.called, Kept) else self.called
        return called if isinstance(called, str) else str(getattr(called, "__name__", "draw"))

    @property
    def sources(self) -> tuple[Path, ...]:
        """The paths that the call takes."""
        operands = leaves((self.owner, self.args, dict(self.kwargs)))
        return tuple(operand for operand in operands if isinstance(operand, Path))


@dataclass(frozen=True, eq=False)
class Kept:
    """A constant of a prologue: an argument that the program made of nothing that differs from call to call."""

    value: Any


class NotReplayedError(Exception):
    """A call cannot be made by the prologue: the prologue does not know an argument, or how to reach an object."""


class DrawnNumbers(Protocol):
    """The numbers of an acquisition, as far as draws need them."""

    def drawn(self, path: Path) -> Any:
        """The number that a draw gives."""

    def values(self, tree: Any) -> Any:
        """Arguments with the values of this call for symbolic numbers."""


class DrawRecording(Recording, Protocol):
    """The part of an acquisition that draws need."""

    @property
    def numbers(self) -> DrawnNumbers:
        """The numbers from outside."""


class ProgramDraws:
    """The draws of one acquisition, in their order; tracing itself leaves all generators as they are."""

    def __init__(self, acquisition: DrawRecording) -> None:
        self._acquisition = acquisition
        self._root = Path(None, "draws", "draws", None)
        self._kept: set[int] = set()
        self.functions: frozenset[types.CodeType] = frozenset()  # of the program, which are called as a whole
        self.needed: NeedsDrawingFunction | None = None
        self.paths: list[Path] = []
        self.arrays: dict[int, Any] = {}  # arrays and scalars of NumPy's that were drawn, or computed of such

    # ---- draws ----------------------------------------------------------------------------------------------

    def draw(self, generator: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Draw from a generator, as the prologue will at each call, and return what the program gets."""
        owner = self._owner(generator)
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        self._keep(generator)
        value = getattr(generator, method)(*self._values(args), **self._values(dict(kwargs)))
        path = self._note(Draw(owner, "draw", method, *operands, len(self.paths)), value)
        return self._guarded_state(path, value) if method in STATES else self._program_value(path, value)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that draws, or makes a generator, as the prologue will at each call."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        for generator in self._process_generators():
            self._keep(generator)
        value = function(*self._values(args), **self._values(dict(kwargs)))
        path = self._note(Draw(None, "call", function, *operands, len(self.paths)), value)
        is_state = getattr(function, "__name__", "") in STATES
        return self._guarded_state(path, value) if is_state else self._program_value(path, value)

    def fresh(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that draws from the operating system; the first call of the program gets what this gives."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        value = fresh_value(function, self._values(args), self._values(dict(kwargs)))
        path = self._note(Draw(None, "call", Kept(Fresh(function, value)), *operands, len(self.paths)), value)
        return self._program_value(path, value)

    def asked(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that only asks; that it raises is asked for again, too."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        try:
            value = function(*self._values(args), **self._values(dict(kwargs)))
        except Exception as error:
            name = type(error).__name__
            path = self._note(Draw(None, "error_of", function, *operands, len(self.paths)), name)
            self._acquisition.outside.read(path, name)
            raise
        path = self._note(Draw(None, "apply", function, *operands, len(self.paths)), value)
        if value is None:
            self._acquisition.outside.read(path, value)
        return self._program_value(path, value)

    def is_first(self, name: str) -> bool:
        """Whether no function of a name was called before."""
        return not any(path.key.name == name for path in self.paths)

    def method(self, array: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a method of a drawn array, as the prologue will."""
        return self._call_again(getattr(array, name), self._operand(array), "method", name, args, kwargs)

    def apply(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of drawn arrays, as the prologue will."""
        return self._call_again(function, None, "apply", function, args, kwargs)

    def _call_again(
        self, function: Any, owner: Path | None, how: str, called: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function of drawn values now, and have the prologue call it at each call."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        value = function(*self._values(args), **self._values(dict(kwargs)))
        return self._program_value(self._note(Draw(owner, how, called, *operands, len(self.paths)), value), value)

    def shuffled(self, generator: Any, items: Any) -> Any:
        """The items of a list or an array in the order that the prologue will shuffle them to at each call."""
        owner, operand = self._owner(generator), self._operand(items)
        self._keep(generator)
        value = copy.copy(self._values(items))
        generator.shuffle(value)
        return self._program_value(
            self._note(Draw(owner, "shuffled", "shuffle", (operand,), {}, len(self.paths)), value), value
        )

    def written(self, array: Any, name: str, args: tuple[Any, ...], *, by_caller: bool = False) -> Any:
        """Call a method that writes to a drawn array; the prologue calls it on a copy, which is the array from then on.

        With `by_caller`, whoever called this writes to the array. Raises `NotReplayedError` where a tensor or another
        array shares the memory, and would have to see the write.
        """
        path = self._acquisition.outside.path_of(array)
        if path is None or self._is_shared(array, path):
            raise NotReplayedError
        operands = (path, *self._operand(args))
        result = array if by_caller else getattr(array, name)(*self._values(args))
        draw = Draw(None, "written", name, operands, {}, len(self.paths))
        self._acquisition.outside.paths[id(array)] = self._note(draw, array)
        return result

    def _is_shared(self, array: Any, path: Path) -> bool:
        """Whether a tensor, or another array that was drawn or computed, shares the memory of an array."""
        known = self._acquisition.outside.paths.values()
        if any(other.step == "tensor" and other.parent is path for other in known):
            return True
        others = (other for other in self.arrays.values() if other is not array)
        return any(sys.modules["numpy"].may_share_memory(array, other) for other in others)

    def _note(self, draw: Draw, value: Any) -> Path:
        path = Path(self._root, "draw", draw, value)
        path.alias = f"drawn_{draw.name}"
        self.paths.append(path)
        return path

    def _guarded_state(self, path: Path, value: Any) -> Any:
        """Guard the state of a generator as a constant, and return the state."""
        if value is not None:
            self._acquisition.outside.read(path, value)
        return value

    def _program_value(self, path: Path, value: Any) -> Any:
        """Return what the program gets for a drawn value: a symbolic number, or the array or generator at the path."""
        if value is None:
            return None
        if type(value) in (int, float):
            return self._acquisition.numbers.drawn(path)
        if type(value) in (list, tuple):
            self._acquisition.outside.guard(Length(path, len(value)))
            return type(value)([self._program_value(path.item(place, item), item) for place, item in enumerate(value)])
        self._acquisition.outside.read(path, value)
        if any(is_of(type(value), kind) for kind in ARRAYS):
            self.arrays[id(value)] = value
        return value

    def looked_into(self, _path: Path) -> None:
        """Note that C code reads the values of a drawn array.

        Where the prologue may call a whole function of the program instead, the program is recorded once more.
        """
        code = outermost_drawing(self._acquisition.machine.frame)
        if code is not None and code not in self.functions:
            self.needed = NeedsDrawingFunction(code)
            raise self.needed

    def knows_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the prologue can pass the arguments of a call, all of which are paths, constants or containers."""
        try:
            self._operand(args), self._operand(dict(kwargs))
        except NotReplayedError:
            return False
        return True

    # ---- generators -----------------------------------------------------------------------------------------

    def _process_generators(self) -> list[Any]:
        numpy = sys.modules.get("numpy.random")
        return [random._inst, *([] if numpy is None else [numpy.mtrand._rand])]

    def _owner(self, generator: Any) -> Path | str:
        """The way to a generator: a path, or its name in the process."""
        for name, known in zip((PYTHON, NUMPY), self._process_generators(), strict=False):
            if generator is known:
                return name
        path: Path | None = self._acquisition.outside.path_of(generator)
        if path is None:
            raise NotReplayedError
        return path

    def _keep(self, generator: Any) -> None:
        if id(generator) not in self._kept:
            self._kept.add(id(generator))
            restore, undo_by = restore_of(generator), self._acquisition.outside.effects.undo_by
            undo_by(functools.partial(_put_back, restore, generator))

    # ---- arguments ------------------------------------------------------------------------------------------

    def _operand(self, value: Any) -> Any:
        """An argument as the prologue knows it; raises `NotReplayedError` for what it does not know."""
        if isinstance(value, SymbolicNumber):
            return self._number_operand(value)
        if type(value) is slice:
            return slice(*map(self._operand, (value.start, value.stop, value.step)))
        if is_constant(value) or isinstance(value, BY_IDENTITY):
            return value
        path = self._acquisition.outside.path_of(value)
        if type(value) in CONTAINERS and (path is None or not leads_from_draw(path)):
            self._acquisition.outside.expand(value)
            return self._container(value)
        if path is not None and not isinstance(value, torch.Tensor):
            return path
        if is_of(type(value), ARRAYS[0]) and not value.dtype.hasobject:
            return Kept(value.copy())
        if is_of(type(value), ARRAYS[1]) or answer_of(type(value)) is NativeAnswer.STATE:
            return Kept(value)
        raise NotReplayedError

    def _container(self, value: Any) -> Any:
        if type(value) is dict:
            return {self._operand(key): self._operand(item) for key, item in value.items()}
        return type(value)(map(self._operand, value))

    def _number_operand(self, number: SymbolicNumber) -> Any:
        is_plain_source = number.source is not None and number.size is None
        return number.source if is_plain_source else number.concretize()

    def _values(self, tree: Any) -> Any:
        """Arguments with the values of this call for symbolic numbers."""
        return self._acquisition.numbers.values(tree)


def _put_back(restore: Callable[[], object], _generator: Any) -> None:
    """Give a generator its former state; this function keeps the generator alive until then."""
    restore()


def code_of_module(function: Any, module: str) -> bool:
    """Whether a bound method is one of a module's own, in Python or in C, and not overridden by a class of others."""
    inner = getattr(function, "__func__", function)
    home = inner.__globals__.get("__name__") if isinstance(inner, types.FunctionType) else module
    return bool(home == module)
