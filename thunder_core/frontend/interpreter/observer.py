"""The seam: what an observer of an interpreted program is told, and what it may answer."""

from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

from thunder_core.frontend.interpreter.frame import Frame, Machine


class Observer:
    """Told what the interpreted program reads, writes and calls; may answer with another value."""

    machine: Machine
    # Types whose instances lead C code to no Python function that this observer wants to hear of.
    quiet: frozenset[type] = frozenset()
    # Whether to be told of Python code that runs natively, for which each native call is profiled.
    watches = False
    # Whether the program holds objects in whose place functions of C are given others.
    substitutes = False

    def on_load_global(self, frame: Frame, name: str, value: Any) -> Any:  # noqa: ARG002
        """A global or builtin was read; `dict.__contains__(frame.globals, name)` tells which."""
        return value

    def on_load_deref(self, frame: Frame, name: str, cell: CellType, value: Any) -> Any:  # noqa: ARG002
        """A free variable was read."""
        return value

    def on_load_attr(self, owner: Any, name: str, value: Any) -> Any:  # noqa: ARG002
        """An attribute was read, whatever way it was found."""
        return value

    def on_load_stored(self, owner: Any, name: str, value: Any) -> None:
        """A `__getattribute__` of the program's has asked `object.__getattribute__` for an attribute."""

    def on_missing_attr(self, owner: Any, name: str) -> None:
        """An attribute that is not there was asked for."""

    def on_subscript(self, container: Any, key: Any, value: Any) -> Any:  # noqa: ARG002
        """`container[key]` was read."""
        return value

    def on_call(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]  # noqa: ARG002
    ) -> Callable[..., Any] | None:  # fmt: skip
        """Something is about to be called; a callable in answer is called natively in its place."""
        return None

    def on_call_result(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any  # noqa: ARG002
    ) -> Any:  # fmt: skip
        """A native call has returned."""
        return value

    def interprets(self, function: FunctionType) -> bool:  # noqa: ARG002
        """Whether a Python function that C code calls is interpreted; it runs natively otherwise."""
        return True

    def on_cached(self, cached: Any, value: Any, hit: bool) -> bool:  # noqa: ARG002
        """The cache of `functools.lru_cache` gave a value, or else its function; whether the cache may keep that."""
        return True

    def on_called_back(self, function: FunctionType, value: Any) -> Any:  # noqa: ARG002
        """A Python function that C code called by itself has returned; the answer is what C code gets."""
        return value

    def on_native_code(self, code: CodeType) -> None:
        """Python code was run natively by C code; told once, and only where `watches` is true."""

    def class_of(self, value: Any) -> type:
        """The class of an operand: that of what it stands for, where it stands for something else."""
        return type(value)

    def on_text(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """A text is about to be made of these; another one in answer takes its place."""
        return None

    def for_native(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:  # noqa: ARG002
        """A function of C is about to be called; the answer are the arguments that it gets, if it `substitutes`."""
        return args, kwargs

    def for_caller(self, value: Any) -> Any:
        """An iterator of the program gives C code this value; the answer is what it gets."""
        return value

    def on_refusal(self, error: TypeError) -> None:
        """A function of C has raised this, after it was given arguments that the observer `substitutes`."""

    def on_operation(
        self, function: Callable[..., Any], operands: tuple[Any, ...]  # noqa: ARG002
    ) -> Callable[[], Any] | None:  # fmt: skip
        """An operator or protocol step is about to be applied natively; a callable in answer is called in its place."""
        return None

    def on_store_attr(self, owner: Any, name: str, value: Any) -> Any:  # noqa: ARG002
        """An attribute is about to be written natively."""
        return value

    def on_delete_attr(self, owner: Any, name: str) -> None:
        """An attribute is about to be deleted natively."""

    def on_store_subscript(self, container: Any, key: Any, value: Any) -> Any:  # noqa: ARG002
        """`container[key]` is about to be written natively."""
        return value

    def on_delete_subscript(self, container: Any, key: Any) -> None:
        """`container[key]` is about to be deleted natively."""

    def on_unwritten(self, owner: Any) -> None:
        """Hear that the write to this object that was announced last, if any was, has raised."""

    def on_store_global(self, frame: Frame, name: str, value: Any) -> Any:  # noqa: ARG002
        """A global is about to be written."""
        return value

    def on_delete_global(self, frame: Frame, name: str) -> None:
        """A global is about to be deleted."""

    def on_store_deref(self, frame: Frame, name: str, cell: CellType, value: Any) -> Any:  # noqa: ARG002
        """A free variable is about to be written."""
        return value

    def on_delete_deref(self, frame: Frame, name: str, cell: CellType) -> None:
        """A free variable is about to be deleted."""

    def on_raise(self, error: BaseException) -> None:
        """An exception is about to be raised by a `raise` statement."""

    def on_enter(self, frame: Frame) -> None:
        """An interpreted frame starts."""

    def on_exit(self, frame: Frame) -> None:
        """An interpreted frame has ended."""
