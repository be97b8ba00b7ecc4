"""An interpreted frame: CPython's state of a running code object, and the frame object that programs see.

Frames refer to their machine, and machines to their frames. So this module also has the interface of a machine. The two
implementations are in `machine.py` and `observed.py`.
"""

import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FrameType, FunctionType, MappingProxyType
from typing import Any, Protocol

from thunder_core.frontend.interpreter.native import UNBOUND, new_frame, set_back, set_instruction, set_locals
from thunder_core.frontend.interpreter.program import DecodedCode

Arguments = Sequence[Any]
Keywords = dict[str, Any]
Find = Callable[["Frame", str], Any]

# A stack entry that is a C NULL in CPython.
NULL: Any = object()

# The reasons why a frame is suspended: it yields one value, or delegates to another iterator.
YIELDED, DELEGATED = 1, 2


def _own_references() -> int:
    """Return the `sys.getrefcount` of an object to which only a container and a local variable refer.

    The count depends on the Python version: since 3.14, an argument may be a borrowed reference.
    """
    counted = object()
    _holder = [counted]
    return sys.getrefcount(counted)


_OWN_REFERENCES = _own_references()
_RELEASES_FIRST_LOCAL_FIRST = sys.version_info < (3, 14)


class Frame:
    """A running code object: its names, its stack and its position.

    `fast` has locals, cells and free variables, as CPython's localsplus does. `names` is the namespace of a class body
    or module, and None in functions. `caller` is the frame that called or resumed this frame. While a generator
    delegates (`yield from`, `await`), `delegate` is the inner generator's frame, whose `delegator` is this frame.
    `delegators` counts the frames that delegate to a frame, directly or through others.

    `handling` counts the exceptions that are being handled. `pending` is the exception that was thrown into a suspended
    frame, and `resume_at` is the step at which a suspended frame continues. `native_frame` is the frame object that
    programs see, if one exists. `snapshot` is the dictionary that `locals()` returns.
    """

    __slots__ = (
        "__weakref__", "builtins", "caller", "code", "delegate", "delegator", "delegators", "fast", "function",
        "globals", "handling", "machine", "names", "native_frame", "pc", "pending", "program", "resume_at", "snapshot",
        "stack", "suspended",
    )  # fmt: skip

    def __init__(
        self,
        machine: "Machine",
        program: DecodedCode,
        code: CodeType,
        function: FunctionType | None,
        global_names: dict[str, Any],
        builtins: dict[str, Any],
        fast: list[Any],
        names: Any = None,
    ) -> None:
        self.machine = machine
        self.program = program
        self.code = code
        self.function = function
        self.globals = global_names
        self.builtins = builtins
        self.fast = fast
        self.names = names
        self.stack: list[Any] = []
        self.pc = 0
        self.caller: Frame | None = None
        self.delegate: Frame | None = None
        self.delegator: Frame | None = None
        self.delegators = 0
        self.handling = 0
        self.pending: BaseException | None = None
        self.suspended = 0
        self.native_frame: FrameType | None = None
        self.snapshot: dict[str, Any] | None = None
        self.resume_at = 0
        for slot in program.cells:
            value = fast[slot]
            fast[slot] = CellType() if value is UNBOUND else CellType(value)

    @property
    def filename(self) -> str:
        """The name of the source file."""
        return self.code.co_filename

    @property
    def lineno(self) -> int:
        """The number of the current source line."""
        return self.program.lines[self.pc] or self.code.co_firstlineno

    @property
    def locals(self) -> Mapping[str, Any]:
        """A read-only view of the local variables by name, as in the result of `locals()`."""
        return self.names if self.names is not None else MappingProxyType(self.bound_locals())

    def bound_locals(self) -> dict[str, Any]:
        """Return the local, cell and free variables that have a value."""
        variables: dict[str, Any] = {}
        cells = self.cell_slots()
        for slot, (name, slot_value) in enumerate(zip(self.program.names, self.fast, strict=False)):
            value = slot_value
            if slot in cells and type(value) is CellType:
                try:
                    value = value.cell_contents
                except ValueError:
                    continue
            if value is not UNBOUND:
                variables[name] = value
        return variables

    def cell_slots(self) -> frozenset[int]:
        """Return the slots that contain cells."""
        memory = self.program.memory
        if "cells" not in memory:
            own = self.code.co_cellvars
            memory["cells"] = frozenset(
                slot for slot, name in enumerate(self.program.names)
                if slot >= self.program.first_free or name in own
            )  # fmt: skip
        slots: frozenset[int] = memory["cells"]
        return slots

    def frame_object(self) -> FrameType:
        """Return the frame object that represents this frame in tracebacks.

        Its variables are written when this frame ends.
        """
        frame = self.native_frame
        if frame is None:
            frame = self.native_frame = new_frame(self.code, self.globals, self.names)
            set_instruction(frame, self.program.offsets[self.pc])
            free = self.program.first_free
            if free < len(self.fast):
                set_locals(frame, self.fast[free:], free)
        return frame

    @property
    def back(self) -> "Frame | None":
        """The frame that called this frame or, in a generator, that delegates to it."""
        return next(self.callers(), None)

    def callers(self) -> Iterator["Frame"]:
        """Yield the frames outside this frame, the nearest first.

        Delegating generators come before the frame that resumed them.
        """
        frame: Frame | None = self
        while frame is not None:
            caller = frame.caller
            while frame.delegator is not None:
                frame = frame.delegator
                yield frame
            frame = caller
            if frame is not None:
                yield frame

    def publish(self) -> FrameType:
        """Update the frame object to the current position, variables and callers, and return the frame object."""
        native_frame = self.frame_object()
        self.write_state()
        below = native_frame
        for frame in self.callers():
            caller = frame.frame_object()
            frame.write_position()
            set_back(below, caller)
            below = caller
        set_back(below, self.machine.outside)
        return native_frame

    def inspect(self) -> FrameType:
        """Return the frame object of a generator: with its callers if it runs, without callers if it is suspended."""
        if not self.suspended and self.caller is not None:
            return self.publish()
        frame = self.frame_object()
        self.write_state()
        return frame

    def write_position(self) -> None:
        """Write the position to the frame object."""
        if self.native_frame is not None:
            set_instruction(self.native_frame, self.program.offsets[self.pc])

    def write_state(self) -> None:
        """Write the position and the variables to the frame object."""
        if self.native_frame is not None:
            self.write_position()
            set_locals(self.native_frame, self.fast)

    def leave(self) -> None:
        """End the frame: write the final state to a frame object that others refer to, and release the variables.

        They are released in CPython's order: first the stack from its top, then the variables, from the last one since
        Python 3.14, and from the first one before.
        """
        frame = self.native_frame
        if frame is not None and sys.getrefcount(frame) > _OWN_REFERENCES:
            self.write_state()
            if frame.f_back is None:
                back = self.back
                set_back(frame, self.machine.outside if back is None else back.frame_object())
        self.stack.clear()
        if _RELEASES_FIRST_LOCAL_FIRST:
            self.fast.reverse()
        self.fast.clear()

    def suspend(self) -> None:
        """Remove the caller from the frame object, because the frame waits to be resumed."""
        if self.native_frame is not None:
            set_back(self.native_frame, None)


class Listener(Protocol):
    """The events that modules report which cannot import `observer`. `observer.Observer` defines all events."""

    def on_enter(self, frame: Frame, /) -> None:
        """An interpreted frame starts."""

    def on_exit(self, frame: Frame, /) -> None:
        """An interpreted frame has ended."""

    def on_raise(self, error: BaseException, /) -> None:
        """An exception is about to be raised by a `raise` statement."""

    def on_reraise(self, error: BaseException | None, /) -> None:
        """A bare `raise` statement is about to raise an exception again."""

    def on_load_attr(self, owner: Any, name: str, value: Any, /) -> Any:
        """An attribute has been read. Return its value for the program."""

    def on_load_stored(self, owner: object, name: str, value: object, /) -> None:
        """A `__getattribute__` of the program has called `object.__getattribute__` for an attribute."""


class Machine(ABC):
    """The interface through which an interpreted program makes calls, and reads or writes attributes, names and items.

    Methods that are not abstract run natively, as in a run without an observer. If `is_over` is set, suspended
    generators end without running the rest of their bodies. `outside` is the native frame that called the interpreter.
    """

    observer: Listener | None = None
    is_over = False
    frame: Frame | None = None
    outside: FrameType | None = None
    depth = 0
    limit = 0

    def end(self) -> None:
        """Note that the run is over."""
        self.is_over = True

    # Calls

    def call(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        """Call any callable under interpretation."""
        return self.invoke(function, arguments, keywords)

    @abstractmethod
    def invoke(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call any callable: announce the call to the observer, if any, and dispatch on the callable's kind."""

    def invoke_hook(self, hook: FunctionType, arguments: Arguments) -> Any:
        """Call a Python function that a lookup calls, such as `__getattribute__`."""
        return self.invoke(hook, arguments, {})

    @abstractmethod
    def invoke_quietly(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call the target of an announced callable, without another announcement."""

    @abstractmethod
    def call_function(self, function: FunctionType, arguments: Arguments, keywords: Keywords) -> Any:
        """Run the code of a Python function under interpretation, without an announcement."""

    def call_from_c(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of Thunder on behalf of C code, with the redirections of the C code suspended."""
        return function(*arguments)

    def call_native(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function that is not interpreted, and report the result to the observer, if any."""
        return function(*arguments, **keywords)

    def call_unreported(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function natively, without a report, as a part of an operation that is reported separately."""
        return function(*arguments, **keywords)

    def call_uninterpreted(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function natively, even a Python function. Python functions among its arguments are interpreted."""
        return function(*arguments, **keywords)

    def call_cached(self, cached: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function under `functools.lru_cache`."""
        return cached(*arguments, **keywords)

    def call_back(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function on behalf of C code."""
        return self.invoke(function, arguments, keywords)

    @abstractmethod
    def next_for_native(self, iterator: object) -> Any:
        """Return the next value of an iterator on behalf of C code."""

    def report_result(self, function: object, arguments: Arguments, keywords: Keywords, value: object) -> Any:  # noqa: ARG002
        """Report the result of a call that was not interpreted, and return the result for the program."""
        return value

    @abstractmethod
    def run_code(
        self, code: CodeType, global_names: dict[str, Any], names: object, closure: Sequence[Any] = (),
        builtins: object = None, function: FunctionType | None = None,
    ) -> Any:  # fmt: skip
        """Interpret the code of a module, class or `exec` in a namespace."""

    @abstractmethod
    def resume(self, frame: Frame) -> Any:
        """Run the frame of a generator until it yields or ends. The exception that its caller handles stays visible."""

    # Reads and writes of the program

    @abstractmethod
    def load_attr(self, owner: object, name: str) -> Any:
        """Return `owner.name`, with getters in Python interpreted."""

    @abstractmethod
    def store_attr(self, owner: object, name: str, value: object) -> None:
        """Set `owner.name = value`, with setters in Python interpreted."""

    @abstractmethod
    def delete_attr(self, owner: object, name: str) -> None:
        """Delete `owner.name`, with deleters in Python interpreted."""

    def load_global(self, frame: Frame, name: str, find: Find) -> Any:
        """Read a global or builtin with `find`, the lookup of the instruction that reads it."""
        return find(frame, name)

    def store_global(self, frame: Frame, name: str, value: object) -> None:
        """Set a global variable."""
        dict.__setitem__(frame.globals, name, value)

    @abstractmethod
    def delete_global(self, frame: Frame, name: str) -> None:
        """Delete a global variable."""

    @abstractmethod
    def load_deref(self, frame: Frame, slot: int) -> Any:
        """Return the value of a cell or free variable."""

    def store_deref(self, frame: Frame, slot: int, value: object) -> None:
        """Set a cell or free variable."""
        frame.fast[slot].cell_contents = value

    @abstractmethod
    def delete_deref(self, frame: Frame, slot: int) -> None:
        """Delete a cell or free variable."""

    def announce_iteration(self, iterable: object) -> None:  # noqa: B027
        """Announce that an iterable is about to be unpacked natively, if there is an observer."""

    def announce_hash(self, value: object) -> None:  # noqa: B027
        """Announce that C code is about to hash or compare a value, if there is an observer."""

    def announce_identity(self, left: object, right: object) -> None:  # noqa: B027
        """Announce that two objects are compared with `is`, if there is an observer."""

    def class_of(self, value: object) -> type:
        """Return the class of an operand, which decides whose special methods are called."""
        return type(value)

    def operate(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Apply an operator or protocol step natively."""
        return function(*operands)

    def text_of(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """Return the observer's string for the result of a string operation; None if the observer has none."""
        return None

    def arguments_for_c(
        self,
        function: object,  # noqa: ARG002
        arguments: Arguments,
        keywords: Keywords,
    ) -> tuple[Arguments, Keywords]:
        """Return the arguments that a C function receives in place of the program's arguments."""
        return arguments, keywords

    def set_attr_natively(self, hook: Any, owner: Any, name: str, value: Any) -> None:
        """Write an attribute as C code does."""
        hook(owner, name, value)

    def delete_attr_natively(self, hook: Any, owner: Any, name: str) -> None:
        """Delete an attribute as C code does."""
        hook(owner, name)

    def load_item(self, container: Any, key: object) -> Any:
        """Return `container[key]` of a container whose protocol is in C."""
        return operator.getitem(container, key)

    def store_item(self, container: Any, key: object, value: Any) -> None:
        """Set `container[key] = value` of a container whose protocol is in C."""
        container[key] = value

    def delete_item(self, container: Any, key: object) -> None:
        """Delete `container[key]` of a container whose protocol is in C."""
        del container[key]
