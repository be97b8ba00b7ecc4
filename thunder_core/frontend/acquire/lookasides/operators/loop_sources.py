"""The source of a loop, found by the offset of the call that makes its iterable."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})


class NotOneFunction(Exception):  # callers handle it
    """The iterations of a loop are not calls of one function of carried values and slices.

    The argument is the reason, which names a line.
    """


def reject(node: ast.AST, reason: str) -> NotOneFunction:
    """Return `NotOneFunction` for a node of a loop's source, with its line."""
    return NotOneFunction(f"line {getattr(node, 'lineno', '?')} {reason}")


@dataclass(frozen=True)
class LoopSource:
    """A loop in the source of a function.

    `call` is the call of `range` or `unbind` that gives the iterations. `index` is the variable of the iteration's
    number, and `item` the variable of its tensor; each may be absent. `functions` are the names of the builtin
    functions around the call. With `is_reversed`, the iterations are in reversed order.
    """

    loop: ast.For
    function: ast.FunctionDef
    call: ast.Call
    index: str | None
    item: str | None
    functions: tuple[str, ...]
    is_reversed: bool


def find_loop(code: CodeType, offset: int) -> LoopSource | None:
    """Return the loop over the result of the call at an offset. Return None if there is no such loop, or no source.

    Raises `NotOneFunction` for a loop of another form.
    """
    position = next(instruction.positions for instruction in dis.get_instructions(code) if instruction.offset == offset)
    for function in _functions(code):
        for loop in ast.walk(function):
            if isinstance(loop, ast.For) and position is not None:
                call = next((node for node in ast.walk(loop.iter) if _is_at(node, position)), None)
                if isinstance(call, ast.Call):
                    return _source_of(loop, function, call)
    return None


def _is_at(node: ast.AST, position: dis.Positions) -> bool:
    return isinstance(node, ast.Call) and tuple(position) == (
        *(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset),
    )


def _source_of(loop: ast.For, function: ast.FunctionDef, call: ast.Call) -> LoopSource:
    """Return a loop; raise `NotOneFunction` if the loop iterates over more than the result of the call."""
    is_range = isinstance(call.func, ast.Name) and call.func.id == "range"
    outer, functions = loop.iter, []
    while outer is not call:
        if not isinstance(outer, ast.Call) or not isinstance(outer.func, ast.Name) or len(outer.args) != 1:
            raise reject(loop, "iterates over neither a `range` nor `unbind`, itself or in `reversed` or `enumerate`")
        functions.append(outer.func.id)
        if outer.keywords or outer.func.id not in ("reversed", "enumerate"):
            raise reject(loop, f"iterates over the result of `{outer.func.id}`")
        outer = outer.args[0]
    if loop.orelse:
        raise reject(loop.orelse[0], "is in the `else` of the loop")
    index, item = _targets(loop, is_range=is_range, functions=functions)
    return LoopSource(loop, function, call, index, item, tuple(functions), "reversed" in functions)


def _targets(loop: ast.For, *, is_range: bool, functions: list[str]) -> tuple[str | None, str | None]:
    """Return the variable of the index and the variable of the tensor."""
    target = loop.target
    if functions in ([], ["reversed"]) and isinstance(target, ast.Name):
        return (target.id, None) if is_range else (None, target.id)
    if functions == ["enumerate"] and not is_range and isinstance(target, ast.Tuple):
        names = [name.id for name in target.elts if isinstance(name, ast.Name)]
        if len(names) == len(target.elts) == 2 and len({*names}) == 2:
            return names[0], names[1]
    raise reject(loop, "assigns the iterations to other variables than an index and a tensor")


def _functions(code: CodeType) -> Iterator[ast.FunctionDef]:
    """Yield the function of a code object in its file, if the file still has the same code."""
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines))
        compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    if code in _nested(compiled):
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _has_code(node, code))


def _has_code(node: ast.FunctionDef, code: CodeType) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def live_after(code: CodeType, offset: int) -> set[str]:
    """Return the local variables that may be read after the loop whose iterable is called at an offset."""
    instructions = list(dis.get_instructions(code))
    indices = {instruction.offset: index for index, instruction in enumerate(instructions)}
    start = next(entry for entry in instructions if entry.offset > offset and entry.opname == "FOR_ITER")
    handlers = [indices[entry.target] for entry in dis.Bytecode(code).exception_entries]  # type: ignore[attr-defined]
    live: set[str] = set()
    waiting: list[tuple[int, frozenset[str]]] = [(index, frozenset()) for index in (indices[start.argval], *handlers)]
    seen: dict[int, frozenset[str]] = {}
    while waiting:
        index, assigned = waiting.pop()
        if index >= len(instructions) or (index in seen and seen[index] <= assigned):
            continue
        seen[index] = assigned = assigned & seen.get(index, assigned)
        live |= _read_names(instructions[index]) - assigned
        assigned |= {instructions[index].argval} if instructions[index].opname == "STORE_FAST" else frozenset()
        waiting += [(following, assigned) for following in _followers(instructions, indices, index)]
    return live


def _read_names(instruction: dis.Instruction) -> set[str]:
    if "LOAD_FAST" not in instruction.opname and instruction.opname != "DELETE_FAST":
        return set()
    names = instruction.argval
    return {*names} if isinstance(names, tuple) else {names}


def _followers(instructions: list[dis.Instruction], indices: dict[int, int], index: int) -> list[int]:
    instruction = instructions[index]
    followers = [indices[instruction.argval]] if instruction.opcode in JUMPS else []
    ends = instruction.opname.startswith(("RETURN_", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"))
    return followers if ends and instruction.opname != "RETURN_GENERATOR" else [*followers, index + 1]
