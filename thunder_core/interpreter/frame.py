"""An interpreted frame: what CPython keeps for a running code object, and the frame object that the user may see."""

import sys
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FrameType, FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

from thunder_core.interpreter.decode import Program
from thunder_core.interpreter.native import UNBOUND, new_frame, set_back, set_instruction, set_locals

if TYPE_CHECKING:
    from thunder_core.interpreter.machine import Machine

# What stands on a stack where CPython has a C NULL.
NULL: Any = object()


# Why a frame is suspended: it yields a value, or all that another iterator yields.
YIELDED, DELEGATED = 1, 2


class Frame:
    """A code object being run: its names, its stack and its position.

    `fast` holds locals, cells and free variables as CPython's localsplus does; `names` is the namespace of a
    class body or module, and None in functions.
    """

    __slots__ = (
        "__weakref__", "builtins", "caller", "code", "delegate", "delegator", "delegators", "fast", "function",
        "globals", "handling", "machine", "made", "names", "pc", "pending", "program", "resume_at", "snapshot", "stack",
        "suspended",
    )  # fmt: skip

    def __init__(
        self,
        machine: "Machine",
        program: Program,
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
        self.made: FrameType | None = None
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
        made = self.made
        if made is None:
            made = self.made = new_frame(self.code, self.globals, self.names)
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
        self.settle()
        below = made
        for frame in self.callers():
            caller = frame.native()
            frame.settle_position()
            set_back(below, caller)
            below = caller
        set_back(below, self.machine.outside)
        return made

    def inspect(self) -> FrameType:
        """The frame object of a generator: with callers while it runs, without while it is suspended."""
        if not self.suspended and self.caller is not None:
            return self.publish()
        made = self.native()
        self.settle()
        return made

    def settle_position(self) -> None:
        """Write the position into the frame object."""
        if self.made is not None:
            set_instruction(self.made, self.program.offsets[self.pc])

    def settle(self) -> None:
        """Write position and variables into the frame object."""
        if self.made is not None:
            self.settle_position()
            set_locals(self.made, self.fast)

    def leave(self) -> None:
        """The frame has ended: leave what others may still look at in its frame object, and let its variables go.

        They go in CPython's order, first the stack from its top, then the variables from the first one.
        """
        made = self.made
        if made is not None and sys.getrefcount(made) > 3:
            self.settle()
            if made.f_back is None:
                back = self.back
                set_back(made, self.machine.outside if back is None else back.native())
        self.stack.clear()
        self.fast.reverse()
        self.fast.clear()

    def suspend(self) -> None:
        """The frame waits to be resumed: it has no caller."""
        if self.made is not None:
            set_back(self.made, None)
