"""Decoding of a code object into a program: the list of steps that the machine runs."""

import dis
import inspect
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from thunder_core.frontend.interpreter.native import UNBOUND
from thunder_core.frontend.interpreter.program import (
    DecodedCode,
    DecodingContext,
    ExceptionHandler,
    Instruction,
    Step,
    local_names,
)
from thunder_core.frontend.interpreter.table import Row, handlers

# Opcodes that have no step: the creation of a frame performs them, or they do nothing.
_SKIPPED_OPCODES = frozenset(
    {"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME", "PRECALL", "COPY_FREE_VARS", "RETURN_GENERATOR"}
)
_CACHE_OPCODE = dis.opmap["CACHE"]
_JUMP_OPCODES = frozenset(dis.hasjrel)
_NAME_OPCODES = frozenset(dis.hasname)
_CONSTANT_OPCODES = frozenset(dis.hasconst)
_OPAQUE_FILES = (str(Path(__file__).parent), "<frozen importlib.")
_RESUMABLE_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def instructions(code: CodeType) -> Iterator[Instruction]:
    """Yield the instructions of a code object.

    The argument of an instruction includes its EXTENDED_ARG prefixes, and `end` is behind its inline caches.
    """
    bytecode = code.co_code
    offset, argument, length, names = 0, 0, len(bytecode), dis.opname
    while offset < length:
        operation, argument = bytecode[offset], argument << 8 | bytecode[offset + 1]
        end = offset + 2
        while end < length and bytecode[end] == _CACHE_OPCODE:
            end += 2
        yield Instruction(offset, end, operation, names[operation], argument)
        if operation != dis.EXTENDED_ARG:
            argument = 0
        offset = end


def decode(code: CodeType, table: dict[str, Row]) -> DecodedCode:
    """Decode a code object with the handlers of a table."""
    all_instructions = list(instructions(code))
    cells = _leading_cells(all_instructions)
    step_instructions = [
        instruction
        for instruction in all_instructions
        if instruction.name not in _SKIPPED_OPCODES and instruction.name != "KW_NAMES"
    ][len(cells) :]
    index = _step_by_offset(all_instructions, step_instructions)
    context = DecodingContext(code, index, all_instructions[0])
    names = local_names(code)
    count = code.co_argcount + code.co_kwonlyargcount
    variadic = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return DecodedCode(
        steps=_steps(context, all_instructions, step_instructions, table),
        offsets=[instruction.offset for instruction in step_instructions],
        lines=_lines(code, step_instructions),
        exception_handlers=_exception_handlers(code, step_instructions, index),
        cells=cells,
        names=names,
        arguments=code.co_argcount,
        unbound_slots=[UNBOUND] * (len(names) - count),
        first_free=len(names) - len(code.co_freevars),
        flags=code.co_flags,
        is_simple=not (variadic or code.co_kwonlyargcount or is_opaque(code)),
        is_opaque=is_opaque(code),
        is_resumable=bool(code.co_flags & _RESUMABLE_FLAGS),
    )


def is_opaque(code: CodeType) -> bool:
    """Whether functions with this code run natively: code of the import system or of the interpreter itself."""
    return code.co_filename.startswith(_OPAQUE_FILES)


def _leading_cells(all_instructions: list[Instruction]) -> list[int]:
    """Return the slots that MAKE_CELL turns into cells before other instructions run."""
    cells: list[int] = []
    for instruction in all_instructions:
        if instruction.name == "MAKE_CELL":
            cells.append(instruction.argument)
        elif instruction.name not in _SKIPPED_OPCODES:
            break
    return cells


def _step_by_offset(all_instructions: list[Instruction], step_instructions: list[Instruction]) -> dict[int, int]:
    """Map each byte offset to the step at or after it."""
    starts = {instruction.offset: number for number, instruction in enumerate(step_instructions)}
    index: dict[int, int] = {}
    following = len(step_instructions)
    for instruction in reversed(all_instructions):
        following = starts.get(instruction.offset, following)
        index[instruction.offset] = following
    return index


def _steps(
    context: DecodingContext,
    all_instructions: list[Instruction],
    step_instructions: list[Instruction],
    table: dict[str, Row],
) -> list[Step]:
    """Return the steps of the instructions. The operand of KW_NAMES becomes a part of the next CALL's argument."""
    steps: list[Step] = []
    for instruction in all_instructions:
        if instruction.name == "KW_NAMES":
            context.keyword_names = context.code.co_consts[instruction.argument]
        elif len(steps) < len(step_instructions) and step_instructions[len(steps)] is instruction:
            context.instruction = instruction
            steps.append(_step(context, table))
            if instruction.name == "CALL":
                context.keyword_names = ()
    return steps


def _step(context: DecodingContext, table: dict[str, Row]) -> Step:
    """Return the handler of an instruction and its prepared argument."""
    instruction = context.instruction
    row = table.get(instruction.name)
    if row is None:
        return _refuse_unknown_opcode, instruction.name
    if row.prepare is not None:
        return row.handler, row.prepare(context, instruction.argument)
    if instruction.opcode in _JUMP_OPCODES:
        return row.handler, context.target()
    if instruction.opcode in _NAME_OPCODES:
        return row.handler, context.code.co_names[instruction.argument]
    if instruction.opcode in _CONSTANT_OPCODES:
        return row.handler, context.code.co_consts[instruction.argument]
    return row.handler, instruction.argument


def _refuse_unknown_opcode(_frame: object, name: str) -> int | None:
    """Raise SystemError when the program reaches an instruction without a handler."""
    raise SystemError(f"the interpreter has no handler for the opcode {name}")


def _lines(code: CodeType, step_instructions: list[Instruction]) -> list[int | None]:
    """Return the source line of each step. `co_lines` yields adjacent ranges, in the order of the steps."""
    lines = list[int | None]()
    ranges, after_all = code.co_lines(), len(code.co_code)
    end, line = 0, None
    for instruction in step_instructions:
        while end <= instruction.offset:
            _, end, line = next(ranges, (0, after_all, None))
        lines.append(line)
    return lines


def _exception_handlers(
    code: CodeType, step_instructions: list[Instruction], index: dict[int, int]
) -> list[ExceptionHandler | None]:
    """Return the exception handler of each step."""
    entries = [
        (start, start + length, ExceptionHandler(index[target], depth_lasti >> 1, bool(depth_lasti & 1)))
        for start, length, target, depth_lasti in _exception_table(code.co_exceptiontable)
    ]
    if not entries:
        return [None] * len(step_instructions)
    return [
        next((catch for start, end, catch in entries if start <= instruction.offset < end), None)
        for instruction in step_instructions
    ]


def _exception_table(table: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield four numbers of each entry: start, length and target in bytes, and `depth << 1 | push_lasti`."""
    numbers = _varints(table)
    for start in numbers:
        yield 2 * start, 2 * next(numbers), 2 * next(numbers), next(numbers)


def _varints(table: bytes) -> Iterator[int]:
    """Yield the numbers of an exception table: six bits per byte, the highest first; 0x40 marks continuation."""
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            yield value
            value = 0


class ProgramCache:
    """A cache of decoded code objects. An entry is dropped when its code object is freed."""

    def __init__(self, observed: bool) -> None:
        self.observed = observed
        self.programs: dict[int, DecodedCode] = {}
        self._references: dict[int, weakref.ref[CodeType]] = {}
        self._table: dict[str, Row] | None = None

    def __call__(self, code: CodeType) -> DecodedCode:
        """Return the decoded program of a code object, which is decoded on first use."""
        key = id(code)
        program = self.programs.get(key)
        if program is None:
            if self._table is None:
                self._table = handlers(self.observed)
            program = decode(code, self._table)
            self._references[key] = weakref.ref(code, self._forget(key))
            self.programs[key] = program
        return program

    def _forget(self, key: int) -> Callable[[Any], None]:
        """Return a callback that drops the entry of a code object that has been freed."""

        def forget(_reference: object) -> None:
            self.programs.pop(key, None)
            self._references.pop(key, None)

        return forget


programs = ProgramCache(observed=False)
observed_programs = ProgramCache(observed=True)
