"""`saved_tensors_hooks` that a program sets: autograd calls them natively when the computation saves tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Protocol

import torch

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import OperationFailed, SourceLine
from thunder_core.frontend.acquire.applied_functions import AppliedFunctions
from thunder_core.frontend.acquire.outside.guards.values import Identical
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.lookup import parts_of_partial
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.ir.literal import dotted_name
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.saved_tensors_hooks import set_saved_tensors_hooks, unset_saved_tensors_hooks

FIX = "pass the values that the hook needs from outside, or set the hooks around the call of the compiled program"


class HookedRecording(Recording, Protocol):
    """The attributes of a run that hooks of saved tensors need."""

    functions: AppliedFunctions


class SavedTensorsHooks:
    """Records where a program sets and removes hooks of saved tensors. Tracing does not call the hooks.

    The values that a hook refers to are guarded. Later uses of an object that a hook writes to are refused.
    """

    def __init__(self, run: HookedRecording) -> None:
        self._run = run
        self._line: SourceLine | None = None

    def set(self, pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        """Record that hooks are set."""
        self._line = self._line or self._run.location().source
        for hook in (pack, unpack):
            self._guard_value(hook, hook)
        self._run.functions.guard_native(pack, (torch.empty(2, 2),))
        self._emit(set_saved_tensors_hooks, (pack, unpack))

    def unset(self) -> None:
        """Record that the innermost hooks are removed."""
        self._emit(unset_saved_tensors_hooks, ())

    def require_no_backward_pass(self) -> None:
        """Raise `OperationFailed` if the program sets hooks and runs a backward pass, which needs packed tensors."""
        if self._line is not None and self._run.recorder.gradients.passes:
            raise OperationFailed(
                "a program that sets torch.autograd.graph.saved_tensors_hooks also runs a backward; tensors without "
                "data cannot be packed",
                fix="call backward() outside the compiled program, or leave out the hooks",
                where=self._line,
            )

    def _emit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        location = self._run.location()
        line = BoundSymbol(symbol_of(function), args, {}, None, (), location.source, location.module, ordered=True)
        self._run.recorder.emit(line)

    def _guard_value(self, hook: object, value: object) -> None:
        """Guard a value that a hook refers to; raise `OperationFailed` for an object that the program creates."""
        outside = self._run.outside
        path = outside.path_of(value)
        if path is not None:
            if path.parent is not None:  # a root is the traced function or module
                outside.guard(Identical(path, value))
            return
        if is_constant(value) or isinstance(value, type | CodeType) or dotted_name(value) is not None:
            return
        parts = self._parts_of(value)
        if parts is None:
            where = callable_attribute(hook, "__code__")
            raise OperationFailed(
                f"the hook `{getattr(hook, '__qualname__', hook)}` of saved_tensors_hooks runs natively and refers to "
                f"{object_of_class(type(value))} that the program creates",
                fix=FIX,
                where=where and SourceLine(where.co_filename, where.co_firstlineno, where.co_qualname),
            )
        for part in parts:
            self._guard_value(hook, part)

    def _parts_of(self, value: object) -> list[Any] | None:
        """Return the values that a function, a partial or a bound method refers to; None for other objects."""
        if isinstance(value, FunctionType):
            return [*self._cells_of(value), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        if isinstance(value, partial):
            function, args, keywords = parts_of_partial(value)
            return [function, *args, *keywords.values()]
        return [value.__self__] if isinstance(value, MethodType) else None

    def _cells_of(self, function: FunctionType) -> Iterator[Any]:
        """Yield the values that a function closes over, with symbolic numbers replaced by guarded values."""
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                if isinstance(cell.cell_contents, SymbolicNumber):
                    cell.cell_contents = cell.cell_contents.concretize()
                self._run.outside.note_attribute_read(cell, "cell_contents", cell.cell_contents)
                yield cell.cell_contents
