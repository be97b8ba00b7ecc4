"""A decoded code object: its instructions, the context in which they are read, and the program of steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

# The handler of an instruction (`table.Handler`, which knows frames, as they know their programs), and its argument.
Step = tuple[Callable[[Any, Any], int | None], Any]


@dataclass(frozen=True)
class Catch:
    """The target of control when a step raises: the step, the stack's depth there, and whether to push the position."""

    target: int
    depth: int
    push_position: bool


@dataclass
class Instruction:
    """One instruction as CPython stores it: where it starts, where the next begins, name and whole argument."""

    offset: int
    end: int
    opcode: int
    name: str
    argument: int


@dataclass
class DecodingContext:
    """The state of decoding a code object that a preparation may look at."""

    code: CodeType
    index: dict[int, int]
    instruction: Instruction
    keyword_names: tuple[str, ...] = ()

    def target(self) -> int:
        """The step that this instruction jumps to."""
        backward = "BACKWARD" in self.instruction.name
        distance = -2 * self.instruction.argument if backward else 2 * self.instruction.argument
        return self.index[self.instruction.end + distance]

    def local_name(self, position: int) -> str:
        """The name of a local, cell or free variable."""
        return local_names(self.code)[position]


@dataclass
class DecodedCode:
    """A decoded code object, with what the making of its frames needs."""

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
    """The names of all local slots: locals, then cells that are no locals, then free variables."""
    own = set(code.co_varnames)
    return (*code.co_varnames, *(name for name in code.co_cellvars if name not in own), *code.co_freevars)
