"""A decoded code object: its instructions, the context for decoding them, and the program of steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

# The handler of an instruction, and its prepared argument. `table.Handler` is the handler's type.
Step = tuple[Callable[[Any, Any], int | None], Any]


@dataclass(frozen=True)
class Catch:
    """The target of control if a step raises: the step, its stack depth, and whether to push the position."""

    target: int
    depth: int
    push_position: bool


class Instruction(NamedTuple):
    """One instruction as CPython stores it: its start, the next instruction's start, its name and full argument."""

    offset: int
    end: int
    opcode: int
    name: str
    argument: int


@dataclass
class DecodingContext:
    """The state of decoding a code object that preparations may read."""

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
    """A decoded code object, with the data that its frames need."""

    steps: list[Step]
    offsets: list[int]
    lines: list[int | None]
    catches: list[Catch | None]
    cells: list[int]
    names: tuple[str, ...]
    arguments: int
    blanks: list[Any]
    first_free: int
    flags: int
    simple: bool
    opaque: bool
    resumable: bool
    memory: dict[str, Any] = field(default_factory=dict)


def local_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of all local slots: locals, then cells that are not locals, then free variables."""
    own = set(code.co_varnames)
    return (*code.co_varnames, *(name for name in code.co_cellvars if name not in own), *code.co_freevars)
