"""An interpreted frame: what CPython keeps for a running code object, and the frame object that the user may see.

A frame knows its machine, and a machine its frames, so that what every part of the interpreter may ask of a machine
is said here as well; `machine.py` and `observed.py` have the two that there are.
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

# What stands on a stack where CPython has a C NULL.
NULL: Any = object()


# Why a frame is suspended: it yields a value, or all that another iterator yields.
YIELDED, DELEGATED = 1, 2


def _own_references() -> int:
    """The count of an object that a variable and one other place hold; since 3.14, arguments may be borrowed."""
    counted = object()
    _holder = [counted]
    return sys.getrefcount(counted)


_OWN_REFERENCES = _own_references()
_FIRST_DIES_FIRST = sys.version_info < (3, 14)


class Frame:
    """A code object being run: its names, its stack and its position.

    `fast` holds locals, cells and free variables as CPython's localsplus does; `names` is the namespace of a
    class body or module, and None in functions.
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
        """The file of the code."""
        return self.code.co_filename

    @property
    def lineno(self) -> int:
        """The line that runs now."""
        return self.program.lines[self.pc] or self.code.co_firstlineno

    @property
    def locals(self) -> Mapping[str, Any]:
        """A read-only view of the local variables, as `locals()` names them."""
        return self.names if self.names is not None else MappingProxyType(self.bound_locals())

    def bound_locals(self) -> dict[str, Any]:
        """The local, cell and free variables that have a value."""
        found: dict[str, Any] = {}
        cells = self.cell_slots()
        for slot, (name, held) in enumerate(zip(self.program.names, self.fast, strict=False)):
            value = held
            if slot in cells and type(value) is CellType:
                try:
                    value = value.cell_contents
                except ValueError:
                    continue
            if value is not UNBOUND:
                found[name] = value
        return found

    def cell_slots(self) -> frozenset[int]:
        """The slots that hold cells."""
        memory = self.program.memory
        if "cells" not in memory:
            own = self.code.co_cellvars
            memory["cells"] = frozenset(
                slot for slot, name in enumerate(self.program.names)
                if slot >= self.program.first_free or name in own
            )  # fmt: skip
        slots: frozenset[int] = memory["cells"]
        return slots

    def native(self) -> FrameType:
        """The frame object that stands for this frame in tracebacks; its variables are written when it ends."""
        made = self.native_frame
        if made is None:
            made = self.native_frame = new_frame(self.code, self.globals, self.names)
            set_instruction(made, self.program.offsets[self.pc])
            free = self.program.first_free
            if free < len(self.fast):
                set_locals(made, self.fast[free:], free)
        return made

    @property
    def back(self) -> "Frame | None":
        """The frame that called this one or, in a generator, that delegates to it."""
        return next(self.callers(), None)

    def callers(self) -> Iterator["Frame"]:
        """The frames outside this one, the nearest first; generators that delegate stand before who resumed them."""
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
        """The frame object with position, variables and callers as they are now."""
        made = self.native()
        self.write_state()
        below = made
        for frame in self.callers():
            caller = frame.native()
            frame.write_position()
            set_back(below, caller)
            below = caller
        set_back(below, self.machine.outside)
        return made

    def inspect(self) -> FrameType:
        """The frame object of a generator: with callers while it runs, without while it is suspended."""
        if not self.suspended and self.caller is not None:
            return self.publish()
        made = self.native()
        self.write_state()
        return made

    def write_position(self) -> None:
        """Write the position into the frame object."""
        if self.native_frame is not None:
            set_instruction(self.native_frame, self.program.offsets[self.pc])

    def write_state(self) -> None:
        """Write position and variables into the frame object."""
        if self.native_frame is not None:
            self.write_position()
            set_locals(self.native_frame, self.fast)

    def leave(self) -> None:
        """The frame has ended: leave what others may still look at in its frame object, and let its variables go.

        They go in CPython's order, first the stack from its top, then the variables: since 3.14 from the last one,
        before from the first one.
        """
        made = self.native_frame
        if made is not None and sys.getrefcount(made) > _OWN_REFERENCES:
            self.write_state()
            if made.f_back is None:
                back = self.back
                set_back(made, self.machine.outside if back is None else back.native())
        self.stack.clear()
        if _FIRST_DIES_FIRST:
            self.fast.reverse()
        self.fast.clear()

    def suspend(self) -> None:
        """The frame waits to be resumed: it has no caller."""
        if self.native_frame is not None:
            set_back(self.native_frame, None)


class Listener(Protocol):
    """The events of a run that parts of the interpreter report by themselves (`observer.Observer` has all of them)."""

    def on_enter(self, frame: Frame, /) -> None:
        """An interpreted frame starts."""

    def on_exit(self, frame: Frame, /) -> None:
        """An interpreted frame has ended."""

    def on_raise(self, error: BaseException, /) -> None:
        """An exception is about to be raised by a `raise` statement."""

    def on_load_stored(self, owner: Any, name: str, value: Any, /) -> None:
        """A `__getattribute__` of the program's has asked `object.__getattribute__` for an attribute."""


class Machine(ABC):
    """The one place through which an interpreted program touches the world: calls, attributes, names and items.

    What needs nothing but Python's own protocols is done here, natively. Where a machine `is_over`, generators that are
    suspended end without running the rest of their bodies.
    """

    observer: Listener | None = None
    is_over = False
    frame: Frame | None = None
    outside: FrameType | None = None
    depth = 0
    limit = 0

    # Calls

    def call(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        """Call anything under interpretation."""
        return self.invoke(function, arguments, keywords)

    @abstractmethod
    def invoke(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call anything the program may call: announced where somebody listens, then by its kind."""

    @abstractmethod
    def invoke_quietly(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call what an announced callable led to, without announcing it again."""

    @abstractmethod
    def call_function(self, function: FunctionType, arguments: Arguments, keywords: Keywords) -> Any:
        """Run the code of a Python function under interpretation, without announcing the call."""

    def entered(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of ours from C code: while it runs, nothing leads back here but what it calls itself."""
        return function(*arguments)

    def call_native(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call what is not interpreted."""
        return function(*arguments, **keywords)

    def natively(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function natively, as a part of something that is announced by itself."""
        return function(*arguments, **keywords)

    def call_cached(self, cached: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call what `functools.lru_cache` has made."""
        return cached(*arguments, **keywords)

    def call_back(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """C code calls this."""
        return self.invoke(function, arguments, keywords)

    @abstractmethod
    def next_for_native(self, iterator: Any) -> Any:
        """C code asks this for its next value."""

    def report_result(self, function: Any, arguments: Arguments, keywords: Keywords, value: Any) -> Any:  # noqa: ARG002
        """The value of a call that was not interpreted."""
        return value

    @abstractmethod
    def run_code(
        self, code: CodeType, global_names: dict[str, Any], names: Any, closure: Sequence[Any] = (),
        builtins: Any = None, function: FunctionType | None = None,
    ) -> Any:  # fmt: skip
        """Interpret a module's, class's or `exec`'s code in a namespace."""

    @abstractmethod
    def resume(self, frame: Frame) -> Any:
        """Run the frame of a generator until it yields or ends; it hides no exception that its caller handles."""

    # What the program reads and writes

    @abstractmethod
    def load_attr(self, owner: Any, name: str) -> Any:
        """`owner.name`, its Python-level getters interpreted."""

    @abstractmethod
    def store_attr(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name = value`, its Python-level setters interpreted."""

    @abstractmethod
    def delete_attr(self, owner: Any, name: str) -> None:
        """`del owner.name`, its Python-level deleters interpreted."""

    def load_global(self, frame: Frame, name: str, find: Find) -> Any:
        """Read a global or builtin, found as the instruction that asks for it does."""
        return find(frame, name)

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        """`global name; name = value`."""
        dict.__setitem__(frame.globals, name, value)

    @abstractmethod
    def delete_global(self, frame: Frame, name: str) -> None:
        """`global name; del name`."""

    @abstractmethod
    def load_deref(self, frame: Frame, slot: int) -> Any:
        """The value of a cell or free variable."""

    def store_deref(self, frame: Frame, slot: int, value: Any) -> None:
        """Give a cell or free variable a value."""
        frame.fast[slot].cell_contents = value

    @abstractmethod
    def delete_deref(self, frame: Frame, slot: int) -> None:
        """Delete a cell or free variable."""

    def announce_iteration(self, iterable: Any) -> None:  # noqa: B027
        """Announce that an iterable is about to be unpacked natively; nobody listens here."""

    def announce_identity(self, left: Any, right: Any) -> None:  # noqa: B027
        """Announce that two objects are told apart by `is`; nobody listens here."""

    def class_of(self, value: Any) -> type:
        """The class of an operand, by which it is chosen whose special methods are asked."""
        return type(value)

    def operate(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Apply an operator or protocol step natively."""
        return function(*operands)

    def text_of(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """The text that takes the place of one which is about to be made of operands; None if there is none."""
        return None

    def for_native(
        self,
        function: Any,  # noqa: ARG002
        arguments: Arguments,
        keywords: Keywords,
    ) -> tuple[Arguments, Keywords]:
        """The arguments that a function of C gets in place of these."""
        return arguments, keywords

    def set_attr_natively(self, hook: Any, owner: Any, name: str, value: Any) -> None:
        """Write an attribute as C does."""
        hook(owner, name, value)

    def delete_attr_natively(self, hook: Any, owner: Any, name: str) -> None:
        """Delete an attribute as C does."""
        hook(owner, name)

    def load_item(self, container: Any, key: Any) -> Any:
        """`container[key]` of a container whose protocol is C's."""
        return operator.getitem(container, key)

    def store_item(self, container: Any, key: Any, value: Any) -> None:
        """`container[key] = value` of a container whose protocol is C's."""
        container[key] = value

    def delete_item(self, container: Any, key: Any) -> None:
        """`del container[key]` of a container whose protocol is C's."""
        del container[key]
