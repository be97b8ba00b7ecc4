"""A decoded code object: its instructions, the context for decoding them, and the program of steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

# The handler of an instruction, and its prepared argument. `table.Handler` is the handler's type.
Step = tuple[Callable[[Any, Any], int | None], Any]


@dataclass(frozen=True)
class ExceptionHandler:
    """The exception handler of a step.

    If the step raises, the stack is cut to `depth`, and the frame continues at the step `target`. If `push_position` is
    set, the index of the raising step is pushed before the exception.
    """

    target: int
    depth: int
    push_position: bool


class Instruction(NamedTuple):
    """One instruction. `end` is the offset of the next one, and `argument` includes EXTENDED_ARG prefixes."""

    offset: int
    end: int
    opcode: int
    name: str
    argument: int


@dataclass
class DecodingContext:
    """The code object that is being decoded and the current instruction, for `table.Preparation` functions.

    `index` maps the offset of each instruction to its step. `keyword_names` are those of the next CALL (3.11, 3.12).
    """

    code: CodeType
    index: dict[int, int]
    instruction: Instruction
    keyword_names: tuple[str, ...] = ()

    def target(self) -> int:
        """Return the step that this instruction jumps to."""
        backward = "BACKWARD" in self.instruction.name
        distance = -2 * self.instruction.argument if backward else 2 * self.instruction.argument
        return self.index[self.instruction.end + distance]


@dataclass
class DecodedCode:
    """A decoded code object, with the data that its frames need.

    `offsets`, `lines` and `exception_handlers` have one entry for each of the `steps`. `cells` are the slots that
    become cells when a frame is created. `names` has the name of each slot, and `first_free` is the slot of the first
    free variable. `arguments` is the number of positional parameters, and `unbound_slots` has UNBOUND for each slot
    that is not a parameter. A code object `is_simple` if it has only positional parameters and is interpreted;
    it `is_opaque` if it runs natively; it `is_resumable` if it is of a generator or coroutine. `memory` is a cache for
    values that other modules compute from the code object.
    """

    steps: list[Step]
    offsets: list[int]
    lines: list[int | None]
    exception_handlers: list[ExceptionHandler | None]
    cells: list[int]
    names: tuple[str, ...]
    arguments: int
    unbound_slots: list[Any]
    first_free: int
    flags: int
    is_simple: bool
    is_opaque: bool
    is_resumable: bool
    memory: dict[str, Any] = field(default_factory=dict)


def local_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of all local slots: locals, then cells that are not locals, then free variables."""
    own = set(code.co_varnames)
    return (*code.co_varnames, *(name for name in code.co_cellvars if name not in own), *code.co_freevars)
