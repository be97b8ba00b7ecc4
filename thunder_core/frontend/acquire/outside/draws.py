"""Random numbers outside of PyTorch: the program's draws, which the prologue repeats at each call."""

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

from thunder_core.frontend.acquire.outside.drawing_functions import outermost_callable_function
from thunder_core.frontend.acquire.outside.native_kinds import NativeState, native_state_of
from thunder_core.frontend.acquire.outside.object_guards import Length
from thunder_core.frontend.acquire.outside.paths import (
    Kept,
    Path,
    leads_from_draw,
    leads_from_random_draw,
    text_of_operands,
)
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.frontend.acquire.outside.reductions import derives_from
from thunder_core.tracing.capture.fakes.trial import outside_recording
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.retrace import NeedsDrawingFunction, Retrace, RetraceReason
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.draws import Fresh, fresh_value, restore_of

PYTHON = "random._inst"
NUMPY = "numpy.random.mtrand._rand"
STATES = frozenset({"getstate", "get_state"})  # methods whose results are stored or restored, but not computed with
CONTAINERS = (tuple, list, dict)
ARRAYS = ("numpy.ndarray", "numpy.generic")
MAX_TEXT = 100  # characters of the text of a call that computes


@dataclass(frozen=True, eq=False)
class Draw:
    """A call that draws, of a generator's method or of a function.

    The `owner` is the path of the generator, the name of one of the process's generators, or None for a function.
    Arguments are paths, constants and containers. A call that is not `is_random` computes with sizes and numbers that
    vary between calls.
    """

    owner: Path | str | None
    how: str
    called: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    number: int
    is_random: bool = True

    def __str__(self) -> str:
        if self.is_random:
            return f"draw {self.number} ({self.name})"
        owner = "" if self.owner is None else f"{self.owner}."
        text = f"{owner}{self.name}({text_of_operands(self.args, self.kwargs)})"
        return text if len(text) <= MAX_TEXT else f"computed value {self.number} ({self.name})"

    @property
    def name(self) -> str:
        """The name of the called function or method."""
        called = self.called.value if isinstance(self.called, Kept) else self.called
        return called if isinstance(called, str) else str(getattr(called, "__name__", "draw"))

    @property
    def sources(self) -> tuple[Path, ...]:
        """The paths among the operands of the call."""
        operands = leaves((self.owner, self.args, dict(self.kwargs)))
        return tuple(operand for operand in operands if isinstance(operand, Path))


class NotReplayedError(Exception):
    """The prologue cannot repeat a call, because it does not know an argument, or has no path to an object."""


class DrawnNumbers(Protocol):
    """The number operations of a run that draws need."""

    def at(self, path: Path) -> Any:
        """Return the number at a path."""

    def at_random_draw(self, path: Path) -> Any:
        """Return the number that a draw returns."""

    def values(self, tree: object) -> Any:
        """Return arguments with symbolic numbers replaced by their values in this call."""


class DrawRecording(Recording, Protocol):
    """The attributes of a run that draws need."""

    @property
    def numbers(self) -> DrawnNumbers:
        """The numbers from outside."""

    def retrace(self, reason: RetraceReason) -> Retrace:
        """Return a request to trace again, which is also met if the program catches it."""


class ProgramDraws:
    """The draws of one run, in order. Tracing leaves all generators unchanged.

    Each of the `functions` of the program is called as a whole. If `constants` is set, numbers are constants of the
    program, and each call checks them.
    """

    def __init__(self, run: DrawRecording, functions: frozenset[types.CodeType], *, constants: bool = False) -> None:
        self._run = run
        self._constants = constants
        self._root = Path(None, "draws", "draws", None)
        self._kept: set[int] = set()
        self.functions = functions
        self.paths: list[Path] = []
        self.arrays: dict[int, Any] = {}  # random arrays and NumPy scalars, and those computed from them

    # ---- draws ----------------------------------------------------------------------------------------------

    def draw(self, generator: object, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Draw from a generator, as the prologue will at each call, and return the program's value."""
        owner = self._owner(generator)
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        self._keep(generator)
        value = getattr(generator, method)(*self._values(args), **self._values(dict(kwargs)))
        path = self._note(Draw(owner, "draw", method, *operands, len(self.paths)), value)
        return self._guarded_state(path, value) if method in STATES else self._program_value(path, value)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that draws or makes a generator, as the prologue will at each call."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        for generator in self._process_generators():
            self._keep(generator)
        value = self._value_of_call(function, args, kwargs)
        path = self._note(Draw(None, "call", function, *operands, len(self.paths)), value)
        is_state = getattr(function, "__name__", "") in STATES
        return self._guarded_state(path, value) if is_state else self._program_value(path, value)

    def _value_of_call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a call on the values of its tensors.

        Raises `NotReplayedError`, and leaves the generators as they were, for a function that writes to a tensor or
        returns one: a tensor of the prologue has no gradient.
        """
        args, kwargs = self._values(args), self._values(dict(kwargs))
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            return function(*args, **kwargs)
        values = {id(tensor): self._computed(tensor)[1] for tensor in tensors}
        restores = [restore_of(generator) for generator in self._process_generators()]
        with outside_recording():
            copies = {key: value.clone() for key, value in values.items()}
            args, kwargs = replace_leaves((args, kwargs), lambda leaf: copies.get(id(leaf), leaf))
            result = function(*args, **kwargs)
            is_written = any(copy._version for copy in copies.values())
        if is_written or any(isinstance(leaf, torch.Tensor) for leaf in leaves(result)):
            for restore in restores:
                restore()
            raise NotReplayedError
        return result

    def _computed(self, tensor: torch.Tensor) -> tuple[Path, torch.Tensor]:
        """Return the path and the value of a tensor that the prologue computes."""
        recorder = self._run.recorder
        if not recorder.knows(tensor) or (computed := recorder.counts.source_and_value(tensor)) is None:
            raise NotReplayedError
        return computed

    def _is_computable(self, value: object) -> bool:
        if isinstance(value, SymbolicNumber):
            return isinstance(value.source, Path)
        return isinstance(value, torch.Tensor) and self.knows_arguments((value,), {})

    def require_no_drawing_function(self) -> None:
        """Raise `Retrace` if C code needs a symbolic number in a function that draws: the prologue can call it."""
        if self.paths:
            self.note_read_of_values(self.paths[-1])

    def fresh(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that draws from the operating system. The program's first call reuses this result."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        value = fresh_value(function, self._values(args), self._values(dict(kwargs)))
        path = self._note(Draw(None, "call", Kept(Fresh(function, value)), *operands, len(self.paths)), value)
        return self._program_value(path, value)

    def query(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that only reads a state. If it raises, each call checks that it raises again."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        try:
            value = function(*self._values(args), **self._values(dict(kwargs)))
        except Exception as error:
            name = type(error).__name__
            path = self._note(Draw(None, "error_of", function, *operands, len(self.paths)), name)
            self._run.outside.read(path, name)
            raise
        path = self._note(Draw(None, "apply", function, *operands, len(self.paths)), value)
        if value is None:
            self._run.outside.read(path, value)
        return self._program_value(path, value)

    def is_first(self, name: str) -> bool:
        """Whether no function of this name has been called before."""
        return not any(path.key.name == name for path in self.paths)

    def method(self, array: object, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a method of a random array, as the prologue will."""
        return self._call_again(getattr(array, name), self._operand(array), "method", name, args, kwargs)

    def apply(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of random arrays, as the prologue will."""
        return self._call_again(function, None, "apply", function, args, kwargs)

    def _call_again(
        self, function: Any, owner: Path | None, how: str, called: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function of random values now, and make the prologue call it at each call."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        value = function(*self._values(args), **self._values(dict(kwargs)))
        draw = Draw(owner, how, called, *operands, len(self.paths), is_random=is_random((owner, operands)))
        return self._program_value(self._note(draw, value), value)

    def shuffled(self, generator: Any, items: Any) -> Any:
        """Return the items of a list or an array in a shuffled order, which the prologue draws again at each call."""
        owner, operand = self._owner(generator), self._operand(items)
        self._keep(generator)
        value = copy.copy(self._values(items))
        generator.shuffle(value)
        return self._program_value(
            self._note(Draw(owner, "shuffled", "shuffle", (operand,), {}, len(self.paths)), value), value
        )

    def written(self, array: object, name: str, args: tuple[Any, ...], *, by_caller: bool = False) -> Any:
        """Call a method that writes to a random array. The prologue calls it on a copy, which then replaces the array.

        If `by_caller` is set, the caller writes to the array itself. Raises `NotReplayedError` if a tensor or another
        array shares the memory, because it would have to see the write.
        """
        path = self._run.outside.path_of(array)
        if path is None or self._is_shared(array, path):
            raise NotReplayedError
        operands = (path, *self._operand(args))
        result = array if by_caller else getattr(array, name)(*self._values(args))
        draw = Draw(None, "written", name, operands, {}, len(self.paths), is_random=is_random(operands))
        self._run.outside.paths[id(array)] = self._note(draw, array)
        return result

    def _is_shared(self, array: object, path: Path) -> bool:
        """Whether a tensor, or another random or computed array, shares the memory of an array."""
        paths = self._run.outside.paths.values()
        if any(drawn.step == "tensor" and drawn.parent is path for drawn in paths):
            return True
        other_arrays = (drawn for drawn in self.arrays.values() if drawn is not array)
        return any(sys.modules["numpy"].may_share_memory(array, drawn) for drawn in other_arrays)

    def _note(self, draw: Draw, value: object) -> Path:
        path = Path(self._root, "draw", draw, value)
        path.alias = f"drawn_{draw.name}" if draw.is_random else f"computed_{draw.name}"
        self.paths.append(path)
        return path

    def _guarded_state(self, path: Path, value: object) -> Any:
        """Guard the state of a generator as a constant, and return the state."""
        if value is not None:
            self._run.outside.read(path, value)
        return value

    def _program_value(self, path: Path, value: Any) -> Any:
        """Return the program's value for a drawn value: a symbolic number, or the array or generator at the path."""
        if value is None:
            return None
        if type(value) in (int, float):
            number = self._run.numbers.at_random_draw(path) if is_random(path) else self._run.numbers.at(path)
            return number.concretize() if self._constants else number
        if type(value) in (list, tuple):
            self._run.outside.guard(Length(path, len(value)))
            return type(value)([self._program_value(path.item(index, item), item) for index, item in enumerate(value)])
        if not is_random(path) and derives_from(type(value), ARRAYS[1]) and value.dtype.kind == "b":
            return self._guarded_condition(path, value)
        self._run.outside.read(path, value)
        if any(derives_from(type(value), kind) for kind in ARRAYS):
            self.arrays[id(value)] = value
        return value

    def _guarded_condition(self, path: Path, value: Any) -> Any:
        """Guard the outcome of a comparison of computed values, and return NumPy's object for the outcome."""
        outcome = value.item()
        draw = Draw(path, "method", "item", (), {}, len(self.paths), is_random=False)
        self._run.outside.read(self._note(draw, outcome), outcome)
        return value

    def note_read_of_values(self, _path: Path) -> None:
        """Note that C code reads the values of a random array.

        If the prologue can call the function that drew the array instead, the program is recorded again.
        """
        code = outermost_callable_function(self._run.machine.frame, self._is_computable)
        if code is not None and code not in self.functions:
            raise self._run.retrace(NeedsDrawingFunction(code))

    def knows_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the prologue can pass the arguments of a call: paths, constants and containers."""
        try:
            self._operand(args), self._operand(dict(kwargs))
        except NotReplayedError:
            return False
        return True

    # ---- generators -----------------------------------------------------------------------------------------

    def _process_generators(self) -> list[Any]:
        numpy = sys.modules.get("numpy.random")
        return [random._inst, *([] if numpy is None else [numpy.mtrand._rand])]

    def _owner(self, generator: object) -> Path | str:
        """Return the path to a generator, or its name if it belongs to the process."""
        for name, process_generator in zip((PYTHON, NUMPY), self._process_generators(), strict=False):
            if generator is process_generator:
                return name
        path: Path | None = self._run.outside.path_of(generator)
        if path is None:
            raise NotReplayedError
        return path

    def _keep(self, generator: object) -> None:
        if id(generator) not in self._kept:
            self._kept.add(id(generator))
            restore, add_undo = restore_of(generator), self._run.outside.effects.add_undo
            add_undo(functools.partial(_put_back, restore, generator))

    # ---- arguments ------------------------------------------------------------------------------------------

    def _operand(self, value: Any) -> Any:
        """Return an argument as the prologue refers to it; raise `NotReplayedError` if the prologue cannot."""
        if isinstance(value, SymbolicNumber):
            return self._number_operand(value)
        if type(value) is slice:
            return slice(*map(self._operand, (value.start, value.stop, value.step)))
        if is_constant(value) or isinstance(value, BY_IDENTITY):
            return value
        path = self._run.outside.path_of(value)
        if type(value) in CONTAINERS and (path is None or not leads_from_draw(path)):
            self._run.outside.expand(value)
            return self._container(value)
        if isinstance(value, torch.Tensor):
            return self._computed(value)[0]
        if path is not None:
            return path
        if derives_from(type(value), ARRAYS[0]) and not value.dtype.hasobject:
            return Kept(value.copy())
        if derives_from(type(value), ARRAYS[1]) or native_state_of(type(value)) is NativeState.STATE:
            return Kept(value)
        raise NotReplayedError

    def _container(self, value: Any) -> Any:
        if type(value) is dict:
            return {self._operand(key): self._operand(item) for key, item in value.items()}
        return type(value)(map(self._operand, value))

    def _number_operand(self, number: SymbolicNumber) -> Any:
        return number.source if isinstance(number.source, Path) else number.concretize()

    def _values(self, tree: Any) -> Any:
        """Return arguments with symbolic numbers replaced by their values in this call, or in this recording."""

        def value(leaf: Any) -> Any:
            is_size = isinstance(leaf, SymbolicNumber) and leaf.size is not None and isinstance(leaf.source, Path)
            return hint_of(leaf.size) if is_size else leaf

        return self._run.numbers.values(replace_leaves(tree, value))


def is_random(operands: object) -> bool:
    """Whether a path among nested operands leads from a random draw, and not only from computed values."""
    return any(leads_from_random_draw(leaf) for leaf in leaves(operands) if isinstance(leaf, Path))


def _put_back(restore: Callable[[], object], _generator: object) -> None:
    """Restore a generator's state. The bound `_generator` keeps the generator alive until then."""
    restore()


def code_of_module(function: object, module: str) -> bool:
    """Whether a bound method is defined by a module, in Python or in C, and not overridden by other classes."""
    inner = getattr(function, "__func__", function)
    home = inner.__globals__.get("__name__") if isinstance(inner, types.FunctionType) else module
    return bool(home == module)
