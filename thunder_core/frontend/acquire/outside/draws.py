"""Calls that the prologue makes at each call: draws of random numbers outside PyTorch, queries, and computations."""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from thunder_core.frontend.acquire.outside.drawing_functions import outermost_callable_function
from thunder_core.frontend.acquire.outside.guards.containers import Length
from thunder_core.frontend.acquire.outside.native_kinds import NativeState, native_state_of
from thunder_core.frontend.acquire.outside.paths import (
    Path,
    PrologueCall,
    PrologueConstant,
    leads_from_draw,
    leads_from_random_draw,
)
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.frontend.acquire.outside.reductions import derives_from
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.tracing.capture.fakes.trial import outside_recording
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.retrace import NeedsDrawingFunction, Retrace, RetraceReason
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.draws import Fresh, fresh_value, process_generators, restore_of

PYTHON_GENERATOR = "random._inst"
NUMPY_GENERATOR = "numpy.random.mtrand._rand"
METHODS_RETURNING_STATES = frozenset({"getstate", "get_state"})  # programs do not compute with their results
CONTAINERS = (tuple, list, dict)
ARRAYS = ("numpy.ndarray", "numpy.generic")  # the base classes of NumPy's arrays and of its scalars


class NotReplayedError(Exception):
    """The prologue cannot make a call, for example because there is no path to an argument."""


class NumbersAtPaths(Protocol):
    """The operations on a run's numbers that `ProgramDraws` needs."""

    def at(self, path: Path) -> Any:
        """Return the number at a path: symbolic, or a constant with a guard."""

    def at_random_draw(self, path: Path) -> Any:
        """Return the number at the path of a random draw."""

    def values(self, tree: object) -> Any:
        """Return arguments with symbolic numbers replaced by their values in this call."""


class DrawRecording(Recording, Protocol):
    """The attributes of a run that `ProgramDraws` needs."""

    @property
    def numbers(self) -> NumbersAtPaths:
        """The numbers from outside."""

    def retrace(self, reason: RetraceReason) -> Retrace:
        """Return the exception that requests another trace. The request is stored, because the program may catch it."""


class ProgramDraws:
    """The calls of the prologue in one run, in order: draws, queries and computations. `paths` lead to their results.

    Methods such as `draw` make a call with the values of this run, add the call to the prologue, and return the
    program's value for the result. They raise `NotReplayedError` if the prologue cannot make the call. The states of
    generators are restored when tracing ends.

    `functions` are the codes of those functions of the program that the prologue calls as a whole. If `constants` is
    set, drawn numbers are constants, and guards check them at each call.
    """

    def __init__(self, run: DrawRecording, functions: frozenset[types.CodeType], *, constants: bool = False) -> None:
        self._run = run
        self._constants = constants
        self._root = Path(None, "draws", "draws", None)
        self._saved_generators: set[int] = set()  # identities of the generators whose states will be restored
        self.functions = functions
        self.paths: list[Path] = []
        self.arrays: dict[int, Any] = {}  # random arrays and NumPy scalars, and values computed from them

    # ---- draws ----------------------------------------------------------------------------------------------

    def draw(self, generator: object, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a drawing method of a generator."""
        owner = self._owner(generator)
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        self._save_state(generator)
        value = getattr(generator, method)(*self._values(args), **self._values(dict(kwargs)))
        path = self._add_call(PrologueCall(owner, "draw", method, *operands, len(self.paths)), value)
        return (
            self._guarded_state(path, value) if method in METHODS_RETURNING_STATES else self._program_value(path, value)
        )

    def call_drawing_function(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function that draws from the generators of the process, or that creates a generator."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        for generator in process_generators():
            self._save_state(generator)
        value = self._value_of_call(function, args, kwargs)
        path = self._add_call(PrologueCall(None, "call", function, *operands, len(self.paths)), value)
        is_state = callable_name(function) in METHODS_RETURNING_STATES
        return self._guarded_state(path, value) if is_state else self._program_value(path, value)

    def _value_of_call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function on the values of its tensors and numbers, and return the result.

        If the function writes to a tensor or returns a tensor, restore the generators and raise `NotReplayedError`: a
        tensor that the prologue computes has no gradient.
        """
        args, kwargs = self._values(args), self._values(dict(kwargs))
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            return function(*args, **kwargs)
        values = {id(tensor): self._path_and_value(tensor)[1] for tensor in tensors}
        restores = [restore_of(generator) for generator in process_generators()]
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

    def _path_and_value(self, tensor: torch.Tensor) -> tuple[Path, torch.Tensor]:
        """Return the path and the value of a tensor that the prologue can compute, or raise `NotReplayedError`."""
        recorder = self._run.recorder
        if not recorder.is_used(tensor) or (computed := recorder.counts.source_and_value(tensor)) is None:
            raise NotReplayedError
        return computed

    def _is_computable(self, value: object) -> bool:
        """Whether the prologue can compute a symbolic number or a tensor."""
        if isinstance(value, SymbolicNumber):
            return isinstance(value.source, Path)
        return isinstance(value, torch.Tensor) and self.can_pass_arguments((value,), {})

    def require_no_drawing_function(self) -> None:
        """Raise `Retrace` if the prologue can call the function that draws a number, before C code receives the
        number's value.

        A program that has drawn nothing continues. Otherwise, see `require_no_computable_function`.
        """
        if self.paths:
            self.require_no_computable_function()

    def call_fresh(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that returns a new result at each call, such as a clock or `os.urandom`.

        The first call of the program uses the result of tracing.
        """
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        value = fresh_value(function, self._values(args), self._values(dict(kwargs)))
        path = self._add_call(
            PrologueCall(None, "call", PrologueConstant(Fresh(function, value)), *operands, len(self.paths)), value
        )
        return self._program_value(path, value)

    def query(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that only reads a state outside the program, such as whether a file exists.

        If the function raises, a guard checks at each call that it raises an error of the same class.
        """
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        try:
            value = function(*self._values(args), **self._values(dict(kwargs)))
        except Exception as error:
            name = type(error).__name__
            path = self._add_call(PrologueCall(None, "error_of", function, *operands, len(self.paths)), name)
            self._run.outside.read(path, name)
            raise
        path = self._add_call(PrologueCall(None, "apply", function, *operands, len(self.paths)), value)
        if value is None:
            self._run.outside.read(path, value)
        return self._program_value(path, value)

    def is_first(self, name: str) -> bool:
        """Whether the prologue calls no function or method of this name yet."""
        return not any(path.key.name == name for path in self.paths)

    def call_method(self, array: object, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a method of a random or computed array."""
        return self._compute(getattr(array, name), self._operand(array), "method", name, args, kwargs)

    def apply(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of random or computed arrays and numbers."""
        return self._compute(function, None, "apply", function, args, kwargs)

    def _compute(
        self,
        function: Any,
        owner: Path | None,
        runtime_method: str,
        called: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a function or method that computes. The result is random if an operand is random."""
        operands = self._operand(args), {key: self._operand(value) for key, value in kwargs.items()}
        value = function(*self._values(args), **self._values(dict(kwargs)))
        is_random_call = is_random((owner, operands))
        call = PrologueCall(owner, runtime_method, called, *operands, len(self.paths), is_random=is_random_call)
        return self._program_value(self._add_call(call, value), value)

    def shuffle(self, generator: Any, items: Any) -> Any:
        """Return a shuffled copy of a list or an array, as a draw of a generator."""
        owner, operand = self._owner(generator), self._operand(items)
        self._save_state(generator)
        value = copy.copy(self._values(items))
        generator.shuffle(value)
        return self._program_value(
            self._add_call(PrologueCall(owner, "shuffle_copy", "shuffle", (operand,), {}, len(self.paths)), value),
            value,
        )

    def call_writing_method(self, array: object, name: str, args: tuple[Any, ...], *, by_caller: bool = False) -> Any:
        """Call a method that writes to a random array. The prologue calls it on a copy, which then replaces the array.

        If `by_caller` is set, the caller makes the write of this run. Raises `NotReplayedError` if a tensor or another
        array shares the memory of the array, because the prologue would write only to the copy.
        """
        path = self._run.outside.path_of(array)
        if path is None or self._is_shared(array, path):
            raise NotReplayedError
        operands = (path, *self._operand(args))
        result = array if by_caller else getattr(array, name)(*self._values(args))
        call = PrologueCall(None, "write_to_copy", name, operands, {}, len(self.paths), is_random=is_random(operands))
        self._run.outside.paths[id(array)] = self._add_call(call, array)
        return result

    def _is_shared(self, array: object, path: Path) -> bool:
        """Whether a tensor, or another random or computed array, shares the memory of an array."""
        paths = self._run.outside.paths.values()
        if any(drawn.step == "tensor" and drawn.parent is path for drawn in paths):
            return True
        other_arrays = (drawn for drawn in self.arrays.values() if drawn is not array)
        return any(sys.modules["numpy"].may_share_memory(array, drawn) for drawn in other_arrays)

    def _add_call(self, call: PrologueCall, value: object) -> Path:
        """Add a call to the prologue, and return the path to its result."""
        path = Path(self._root, "draw", call, value)
        path.alias = f"drawn_{call.name}" if call.is_random else f"computed_{call.name}"
        self.paths.append(path)
        return path

    def _guarded_state(self, path: Path, value: object) -> Any:
        """Guard the state of a generator as a constant, and return the state."""
        if value is not None:
            self._run.outside.read(path, value)
        return value

    def _program_value(self, path: Path, value: Any) -> Any:
        """Return the program's value for a result: a symbolic number, or a guarded array, generator or constant."""
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
        """Guard a NumPy bool, the result of a comparison of computed values, and return it."""
        outcome = value.item()
        call = PrologueCall(path, "method", "item", (), {}, len(self.paths), is_random=False)
        self._run.outside.read(self._add_call(call, outcome), outcome)
        return value

    def require_no_computable_function(self) -> None:
        """Raise `Retrace` if the prologue can call a running function of the program as a whole.

        C code is about to read drawn values, so the trace would be valid only for these values. In the next trace, the
        prologue calls the outermost such function, and the trace has its results.
        """
        code = outermost_callable_function(self._run.machine.frame, self._is_computable)
        if code is not None and code not in self.functions:
            raise self._run.retrace(NeedsDrawingFunction(code))

    def can_pass_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the prologue can pass the arguments of a call: paths, constants and containers."""
        try:
            self._operand(args), self._operand(dict(kwargs))
        except NotReplayedError:
            return False
        return True

    # ---- generators -----------------------------------------------------------------------------------------

    def _owner(self, generator: object) -> Path | str:
        """Return the dotted name of a generator of the process, or the path to another generator.

        Raises `NotReplayedError` if there is no path.
        """
        names = (PYTHON_GENERATOR, NUMPY_GENERATOR)
        for name, process_generator in zip(names, process_generators(), strict=False):  # NumPy may be absent
            if generator is process_generator:
                return name
        path: Path | None = self._run.outside.path_of(generator)
        if path is None:
            raise NotReplayedError
        return path

    def _save_state(self, generator: object) -> None:
        """Save the state of a generator before its first draw. The state is restored when tracing ends."""
        if id(generator) not in self._saved_generators:
            self._saved_generators.add(id(generator))
            restore = functools.partial(_restore_generator, restore_of(generator), generator)
            self._run.outside.effects.add_undo(restore)

    # ---- arguments ------------------------------------------------------------------------------------------

    def _operand(self, value: Any) -> Any:
        """Return an argument as an operand of the prologue's call: a path, a constant, or a container of operands.

        Raises `NotReplayedError` for other arguments.
        """
        if isinstance(value, SymbolicNumber):
            return self._number_operand(value)
        if type(value) is slice:
            return slice(*map(self._operand, (value.start, value.stop, value.step)))
        if is_constant(value) or isinstance(value, BY_IDENTITY):
            return value
        path = self._run.outside.path_of(value)
        if type(value) in CONTAINERS and (path is None or not leads_from_draw(path)):
            self._run.outside.expand(value)
            return self._container_operand(value)
        if isinstance(value, torch.Tensor):
            return self._path_and_value(value)[0]
        if path is not None:
            return path
        if derives_from(type(value), ARRAYS[0]) and not value.dtype.hasobject:
            return PrologueConstant(value.copy())
        if derives_from(type(value), ARRAYS[1]) or native_state_of(type(value)) is NativeState.STATE:
            return PrologueConstant(value)
        raise NotReplayedError

    def _container_operand(self, value: Any) -> Any:
        """Return a container with operands in place of its items."""
        if type(value) is dict:
            return {self._operand(key): self._operand(item) for key, item in value.items()}
        return type(value)(map(self._operand, value))

    def _number_operand(self, number: SymbolicNumber) -> Any:
        """Return the path of a symbolic number, or the guarded value of a number without a path."""
        return number.source if isinstance(number.source, Path) else number.concretize()

    def _values(self, tree: Any) -> Any:
        """Return arguments with symbolic numbers replaced by their values in this call.

        A symbolic size is replaced by its hint, which is the size of the traced tensors.
        """

        def value(leaf: Any) -> Any:
            is_size = isinstance(leaf, SymbolicNumber) and leaf.size is not None and isinstance(leaf.source, Path)
            return hint_of(leaf.size) if is_size else leaf

        return self._run.numbers.values(replace_leaves(tree, value))


def is_random(operands: object) -> bool:
    """Whether a path among nested operands starts from a random draw, not only from computed values."""
    return any(leads_from_random_draw(leaf) for leaf in leaves(operands) if isinstance(leaf, Path))


def _restore_generator(restore: Callable[[], object], _generator: object) -> None:
    """Restore the state of a generator. The argument `_generator` keeps the generator alive until this call."""
    restore()


def is_defined_by_module(function: object, module: str) -> bool:
    """Whether a bound method is written in C, or is a Python method that is defined in a module."""
    inner = callable_attribute(function, "__func__", function)
    home = inner.__globals__.get("__name__") if isinstance(inner, types.FunctionType) else module
    return bool(home == module)
