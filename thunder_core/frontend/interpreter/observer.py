"""The interface between the interpreter and an observer: the reported events, and the possible answers."""

from collections.abc import Callable
from enum import Enum
from types import CellType, CodeType, FunctionType
from typing import Any

from thunder_core.frontend.interpreter.frame import Frame, Machine


class NotTaken(Enum):
    """The class of `NOT_TAKEN`, the answer of an observer that does not replace a call or an operation."""

    NOT_TAKEN = "not taken"


NOT_TAKEN = NotTaken.NOT_TAKEN


class Written(Enum):
    """The class of `WRITTEN`, the answer of an observer that has made the write of an attribute itself."""

    WRITTEN = "written"


WRITTEN = Written.WRITTEN


class Observer:
    """Receives the reads, writes and calls of an interpreted program, and may return other values for the program."""

    machine: Machine
    # Types whose instances C code can use without calling a Python function that must be redirected.
    quiet_types: frozenset[type] = frozenset()
    # Whether `on_native_code` is called for Python code that runs natively. This profiles each native call.
    watches_native_code = False
    # Whether `arguments_for_c` replaces arguments of C functions.
    substitutes_arguments = False

    def on_start(self, machine: Machine) -> None:
        """Receive the machine that is about to run the program."""
        self.machine = machine

    def on_load_global(self, frame: Frame, name: str, value: object) -> Any:  # noqa: ARG002
        """Receive a global or builtin that was read; `dict.__contains__(frame.globals, name)` is true for a global."""
        return value

    def on_load_deref(self, frame: Frame, name: str, cell: CellType, value: object) -> Any:  # noqa: ARG002
        """Receive a free variable that was read."""
        return value

    def on_load_attr(self, owner: object, name: str, value: object) -> Any:  # noqa: ARG002
        """Receive the value of an attribute that was read, by any kind of lookup."""
        return value

    def on_load_stored(self, owner: object, name: str, value: object) -> None:
        """Note that a `__getattribute__` of the program has called `object.__getattribute__` for an attribute."""

    def on_missing_attr(self, owner: object, name: str) -> None:
        """Note that a missing attribute was read."""

    def on_subscript(self, container: object, key: object, value: object) -> Any:  # noqa: ARG002
        """Receive the value of `container[key]` that was read."""
        return value

    def on_call(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        """Make a call and return its result, or return `NOT_TAKEN` to let the machine make the call."""
        return NOT_TAKEN

    def on_branch(self, frame: Frame, condition: object, if_true: int, if_false: int) -> Any:  # noqa: ARG002
        """Run both arms of a branch and return the step after them, or return `NOT_TAKEN` to let the machine branch."""
        return NOT_TAKEN

    def on_call_result(
        self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any], value: object  # noqa: ARG002
    ) -> Any:  # fmt: skip
        """Receive the result of a native call."""
        return value

    def interprets(self, function: FunctionType) -> bool:  # noqa: ARG002
        """Whether a Python function that C code calls is interpreted. Otherwise, it runs natively."""
        return True

    def on_cache_miss(self, cached: object) -> None:
        """Note that a function under `functools.lru_cache` is about to compute a value that its cache lacks."""

    def computes_cached_values(self, cached: object) -> bool:  # noqa: ARG002
        """Whether each call of a function under `functools.lru_cache` bypasses the cache and computes its value."""
        return False

    def on_cached(
        self,
        cached: object,  # noqa: ARG002
        arguments: tuple[Any, ...],  # noqa: ARG002
        keywords: dict[str, Any],  # noqa: ARG002
        value: object,  # noqa: ARG002
        *,
        hit: bool,  # noqa: ARG002
    ) -> bool:
        """Whether the cache of `functools.lru_cache` may keep a value. `hit`: the value is from the cache."""
        return True

    def on_called_back(self, function: FunctionType, value: object) -> Any:  # noqa: ARG002
        """Receive the result of a Python function that C code has called, and return the result for C code."""
        return value

    def count_effects(self) -> object:
        """Return a value that changes when the program writes to an object from outside, or prints."""
        return None

    def on_hook_effects(self, function: Any) -> None:
        """Note that a function that a lookup called, such as `__hash__`, has had side effects."""

    def on_native_code(self, code: CodeType) -> None:
        """Note Python code that C code ran natively. Called once per code object if `watches_native_code` is true."""

    def class_of(self, value: object) -> type:
        """Return the class of an operand, or of the object that the operand represents."""
        return type(value)

    def on_text(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """Return a string that replaces the result of a string operation, or None to let the machine run it."""
        return None

    def arguments_for_c(self, function: object, args: object, kwargs: object) -> tuple[Any, Any]:  # noqa: ARG002
        """Return the arguments that a C function receives. Called only if `substitutes_arguments` is true."""
        return args, kwargs

    def iterated_value_for_c(self, value: object) -> Any:
        """Return the value that C code receives in place of the next value of an iterator of the program."""
        return value

    def on_refusal(self, error: TypeError) -> None:
        """Note a TypeError of a C function, which a replaced argument may have caused.

        This is called only if `substitutes_arguments` is true.
        """

    def on_operation(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """Return the result of an operator or protocol step, or `NOT_TAKEN` to let the machine apply it natively."""
        return NOT_TAKEN

    def on_store_attr(self, owner: object, name: str, value: object) -> Any:  # noqa: ARG002
        """Receive a value before it is written to an attribute natively. `WRITTEN` means that nothing is left to do."""
        return value

    def on_delete_attr(self, owner: object, name: str) -> None:
        """Note that an attribute is about to be deleted natively."""

    def on_store_subscript(self, container: object, key: object, value: object) -> Any:  # noqa: ARG002
        """Receive a value before it is written to `container[key]` natively."""
        return value

    def on_delete_subscript(self, container: object, key: object) -> None:
        """Note that `container[key]` is about to be deleted natively."""

    def on_unwritten(self, owner: object) -> None:
        """Note that a write to this object has raised, so the last announced write to the object did not happen."""

    def on_nested_effects(self, owner: object) -> None:
        """Note that an announced write to this object has called a function with side effects of its own."""

    def on_store_global(self, frame: Frame, name: str, value: object) -> Any:  # noqa: ARG002
        """Receive a value before it is written to a global."""
        return value

    def on_delete_global(self, frame: Frame, name: str) -> None:
        """Note that a global is about to be deleted."""

    def on_store_deref(self, frame: Frame, name: str, cell: CellType, value: object) -> Any:  # noqa: ARG002
        """Receive a value before it is written to a free variable."""
        return value

    def on_unbound_deref(self, cell: CellType) -> None:
        """Note that a free variable has no value, before the `NameError` is raised."""

    def on_delete_deref(self, frame: Frame, name: str, cell: CellType) -> None:
        """Note that a free variable is about to be deleted."""

    def on_raise(self, error: BaseException) -> None:
        """Note that an exception is about to be raised by a `raise` statement."""

    def on_reraise(self, error: BaseException | None) -> None:
        """Note the exception that a bare `raise` statement is about to raise again; None if none is handled."""

    def on_enter(self, frame: Frame) -> None:
        """Note that an interpreted frame starts."""

    def on_exit(self, frame: Frame) -> None:
        """Note that an interpreted frame has ended."""
