"""The source of a loop over the result of a call, which is identified by its code object and its bytecode offset."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

JOIN_FUNCTIONS = ("stack", "cat")
JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})


class UnsupportedLoopSource(Exception):  # callers handle it
    """The body of a loop cannot be rewritten to a function of carried values and slices.

    The argument is the reason, which begins with the line.
    """


def reject(node: ast.AST, reason: str) -> UnsupportedLoopSource:
    """Return the error for a node of a loop's source. The reason continues the words "line 7", as in "reads `i`"."""
    return UnsupportedLoopSource(f"line {getattr(node, 'lineno', '?')} {reason}")


@dataclass(frozen=True)
class LoopSource:
    """A loop in the source of a function.

    `call` is the call of `range` or `unbind` whose result the loop iterates over. `index` is the variable that holds
    the number of the iteration, and `item` the variable that holds the iteration's tensor. Either may be None.
    `functions` are the names of the builtin functions around the call: `reversed` and `enumerate`.
    """

    loop: ast.For
    function: ast.FunctionDef
    call: ast.Call
    index: str | None
    item: str | None
    functions: tuple[str, ...]
    is_reversed: bool


def find_loop(code: CodeType, offset: int) -> LoopSource | None:
    """Return the loop over the result of the call at a bytecode offset; None if there is no such loop, or no source.

    Raises `UnsupportedLoopSource` if the loop iterates over more than the result of the call, or has an `else`.
    """
    position = next(instruction.positions for instruction in dis.get_instructions(code) if instruction.offset == offset)
    for function in _definitions_of(code):
        for loop in ast.walk(function):
            if isinstance(loop, ast.For) and position is not None:
                call = next((node for node in ast.walk(loop.iter) if _is_at(node, position)), None)
                if isinstance(call, ast.Call):
                    return _describe_loop(loop, function, call)
    return None


def _is_at(node: ast.AST, position: dis.Positions) -> bool:
    """Whether a node is a call at a position of the source."""
    return isinstance(node, ast.Call) and tuple(position) == (
        *(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset),
    )


def _describe_loop(loop: ast.For, function: ast.FunctionDef, call: ast.Call) -> LoopSource:
    """Describe a loop whose iterable contains a call. Raise `UnsupportedLoopSource` for unsupported forms of loops."""
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
    index, item = _target_variables(loop, is_range=is_range, functions=functions)
    return LoopSource(loop, function, call, index, item, tuple(functions), "reversed" in functions)


def _target_variables(loop: ast.For, *, is_range: bool, functions: list[str]) -> tuple[str | None, str | None]:
    """Return the variables to which the loop assigns the index and the tensor. An absent variable is None."""
    target = loop.target
    if functions in ([], ["reversed"]) and isinstance(target, ast.Name):
        return (target.id, None) if is_range else (None, target.id)
    if functions == ["enumerate"] and not is_range and isinstance(target, ast.Tuple):
        names = [name.id for name in target.elts if isinstance(name, ast.Name)]
        if len(names) == len(target.elts) == 2 and len({*names}) == 2:
            return names[0], names[1]
    raise reject(loop, "assigns the iterations to other variables than an index and a tensor")


def _definitions_of(code: CodeType) -> Iterator[ast.FunctionDef]:
    """Yield the definition of a code object's function in the file, if the file still compiles to the same code."""
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines))
        compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    if code in _code_and_nested(compiled):
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _has_code(node, code))


def _has_code(node: ast.FunctionDef, code: CodeType) -> bool:
    """Whether a definition has the name and first line of a code object. The first line may be that of a decorator."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


def _code_and_nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and the code of all functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_and_nested(constant)


def live_after(code: CodeType, offset: int) -> set[str]:
    """Return the local variables that may be read after a loop, before they are assigned again.

    The loop is the first one after the call at a bytecode offset, which computes its iterable.
    """
    instructions = list(dis.get_instructions(code))
    indices = {instruction.offset: index for index, instruction in enumerate(instructions)}
    start = next(entry for entry in instructions if entry.offset > offset and entry.opname == "FOR_ITER")
    handlers = [indices[entry.target] for entry in dis.Bytecode(code).exception_entries]  # type: ignore[attr-defined]
    live: set[str] = set()
    # Pairs of an instruction, and the variables that every path from the loop to the instruction has assigned.
    # Exception handlers may run after the loop, too.
    waiting: list[tuple[int, frozenset[str]]] = [(index, frozenset()) for index in (indices[start.argval], *handlers)]
    seen: dict[int, frozenset[str]] = {}
    while waiting:
        index, assigned = waiting.pop()
        if index >= len(instructions) or (index in seen and seen[index] <= assigned):
            continue
        seen[index] = assigned = assigned & seen.get(index, assigned)
        live |= _read_names(instructions[index]) - assigned
        assigned |= {instructions[index].argval} if instructions[index].opname == "STORE_FAST" else frozenset()
        waiting += [(successor, assigned) for successor in _successors(instructions, indices, index)]
    return live


def _read_names(instruction: dis.Instruction) -> set[str]:
    """Return the local variables that an instruction reads or deletes."""
    if "LOAD_FAST" not in instruction.opname and instruction.opname != "DELETE_FAST":
        return set()
    names = instruction.argval
    return {*names} if isinstance(names, tuple) else {names}


def _successors(instructions: list[dis.Instruction], indices: dict[int, int], index: int) -> list[int]:
    """Return the indices of the instructions that may run next."""
    instruction = instructions[index]
    successors = [indices[instruction.argval]] if instruction.opcode in JUMPS else []
    ends = instruction.opname.startswith(("RETURN_", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"))
    return successors if ends and instruction.opname != "RETURN_GENERATOR" else [*successors, index + 1]


def is_only_joined(function: ast.FunctionDef, name: str, append: ast.Name) -> bool:
    """Whether a list starts empty, is extended by `append` alone, and is otherwise only read by `torch.stack` or `cat`.

    `append` is the node of the list's name in the only allowed `name.append(value)`.
    """
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and _is_new_list(node, name)]
    stored = [node for node in nodes if not isinstance(node.ctx, ast.Load)]
    read = [node for node in nodes if isinstance(node.ctx, ast.Load) and node is not append]
    joined = {id(node.args[0]) for node in ast.walk(function) if isinstance(node, ast.Call) and _is_join(node)}
    return len(stored) == len(assigned) == 1 and all(id(node) in joined for node in read)


def _is_new_list(node: ast.Assign, name: str) -> bool:
    """Whether an assignment is `name = []`, or has the empty list at the name's index, as in `name, x = [], y`."""
    target, value = node.targets[-1], node.value
    is_tuple = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    pairs = list(zip(target.elts, value.elts, strict=True)) if is_tuple else [(target, value)]  # type: ignore[attr-defined]
    return len(node.targets) == 1 and any(
        isinstance(target, ast.Name) and target.id == name and isinstance(value, ast.List) and not value.elts
        for target, value in pairs
    )


def _is_join(node: ast.Call) -> bool:
    """Whether a call is `torch.stack(...)` or `torch.cat(...)`, with no other keyword than `dim`."""
    function = node.func
    is_torch = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    if not is_torch or function.value.id != "torch" or function.attr not in JOIN_FUNCTIONS or not node.args:  # type: ignore[attr-defined]
        return False
    return len(node.args) <= 2 and all(keyword.arg == "dim" for keyword in node.keywords)
