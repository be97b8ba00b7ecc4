"""Loops over `range(n)` whose iterations can be one function: found in the source of a code object.

The body of such a loop only assigns local variables, appends to lists which `torch.stack` or `torch.cat` reads later,
and writes to `buffer[:, i]`. It reads the index only in subscripts such as `x[:, i]`.
"""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

ALLOWED = (
    *(ast.Name, ast.Load, ast.Attribute, ast.Call, ast.keyword, ast.Constant, ast.Tuple, ast.Subscript, ast.Slice),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
)
CONSTANTS = (ast.Slice, ast.Constant, ast.UnaryOp, ast.unaryop, ast.Load)
JOINING = ("stack", "cat")
METADATA = ("dtype", "device")
# What differs between iterations, or changes more than the values of tensors.
HIDDEN = (
    *(
        "_",
        "requires_grad",
        "grad",
        "is_leaf",
        "data_ptr",
        "backward",
        "autograd",
        "register",
        "retain",
        "set_",
        "name",
    ),
    *("manual_seed", "seed", "storage", "untyped_storage", "share_memory", "item", "tolist", "numpy"),
)
JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
LOOKS_AT_FRAMES = {"locals", "vars", "eval", "exec", "dir"}


class NotOneFunction(Exception):  # it never leaves this module
    """The iterations of a loop are not calls of one function of carried values and slices."""


@dataclass(frozen=True)
class LoopBody:
    """The body of a loop as a function of carried values, slices, rows of buffers, and values that stay the same.

    `slices` and `buffers` are pairs of a name and the dimension of the index. The function returns the carried values,
    and a row for each of the `lists`, then for each of the `buffers`. `globals` are the names of modules that it reads.
    """

    code: CodeType
    carried: tuple[str, ...]
    slices: tuple[tuple[str, int], ...]
    buffers: tuple[tuple[str, int], ...]
    same: tuple[str, ...]
    lists: tuple[str, ...]
    globals: tuple[str, ...]


@lru_cache(maxsize=256)
def loop_body(code: CodeType, offset: int) -> LoopBody | None:
    """Return the body of the loop whose `range` is called at an offset of a code object; None if it is no function."""
    loop_and_function = _loop_at(code, offset)
    if loop_and_function is None or LOOKS_AT_FRAMES & {*code.co_names}:
        return None
    try:
        rewriter = _Body(*loop_and_function, code)
        body = rewriter.result()
    except NotOneFunction:
        return None
    return None if (rewriter.assigned - {*body.carried}) & _live_after(code, offset) else body


def _loop_at(code: CodeType, offset: int) -> tuple[ast.For, ast.FunctionDef] | None:
    """Return the loop over a `range` with one argument that is called at an offset, and the function around it."""
    position = next(instruction.positions for instruction in dis.get_instructions(code) if instruction.offset == offset)
    for tree_function in _functions(code):
        for loop in ast.walk(tree_function):
            if (
                isinstance(loop, ast.For)
                and position is not None
                and (loop.iter.lineno, loop.iter.col_offset) == (position.lineno, position.col_offset)
                and _is_range(loop)
            ):
                return loop, tree_function
    return None


def _is_range(loop: ast.For) -> bool:
    call = loop.iter
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "range":
        return False
    return len(call.args) == 1 and not call.keywords and isinstance(loop.target, ast.Name) and not loop.orelse


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


def _live_after(code: CodeType, offset: int) -> set[str]:
    """Return the local variables that may be read after the loop whose `range` is called at an offset."""
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    start = next(entry for entry in instructions if entry.offset > offset and entry.opname == "FOR_ITER")
    handlers = [places[entry.target] for entry in dis.Bytecode(code).exception_entries]  # type: ignore[attr-defined]
    live: set[str] = set()
    waiting: list[tuple[int, frozenset[str]]] = [(place, frozenset()) for place in (places[start.argval], *handlers)]
    seen: dict[int, frozenset[str]] = {}
    while waiting:
        place, assigned = waiting.pop()
        if place >= len(instructions) or (place in seen and seen[place] <= assigned):
            continue
        seen[place] = assigned = assigned & seen.get(place, assigned)
        live |= _read_names(instructions[place]) - assigned
        assigned |= {instructions[place].argval} if instructions[place].opname == "STORE_FAST" else frozenset()
        waiting += [(following, assigned) for following in _followers(instructions, places, place)]
    return live


def _read_names(instruction: dis.Instruction) -> set[str]:
    if "LOAD_FAST" not in instruction.opname and instruction.opname != "DELETE_FAST":
        return set()
    names = instruction.argval
    return {*names} if isinstance(names, tuple) else {names}


def _followers(instructions: list[dis.Instruction], places: dict[int, int], place: int) -> list[int]:
    instruction = instructions[place]
    followers = [places[instruction.argval]] if instruction.opcode in JUMPS else []
    ends = instruction.opname.startswith(("RETURN_", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"))
    return followers if ends and instruction.opname != "RETURN_GENERATOR" else [*followers, place + 1]


class _Body(ast.NodeTransformer):
    """Rewrites the body of a loop to a function."""

    def __init__(self, loop: ast.For, function: ast.FunctionDef, code: CodeType) -> None:
        self.loop, self.function, self.code = loop, function, code
        self.index: str = loop.target.id  # type: ignore[attr-defined]
        self._require_local(self.index)
        names = (node for node in ast.walk(loop) if isinstance(node, ast.Name))
        self.assigned = {name.id for name in names if isinstance(name.ctx, ast.Store)}  # with the index
        self.before: set[str] = set()  # names that the iteration has assigned so far
        self.carried: dict[str, None] = {}
        self.same: dict[str, None] = {}
        self.globals: dict[str, None] = {}
        self.slices: dict[tuple[str, int], str] = {}
        self.lists: dict[str, None] = {}
        self.buffers: dict[tuple[str, int], None] = {}

    def result(self) -> LoopBody:
        """Return the function. Raise `NotOneFunction` if the body is none."""
        self._note_buffers()
        statements = [self._statement(statement) for statement in self.loop.body]
        read = {*self.carried, *(name for name, _ in self.slices)}
        if not self.slices or ({*self.lists} | self._buffer_names) & read:
            raise NotOneFunction
        if {*self.lists} & {*self.same, *self.assigned}:
            raise NotOneFunction
        return LoopBody(
            self._code(statements),
            *(tuple(self.carried), tuple(self.slices), tuple(self.buffers), tuple(self.same)),
            *(tuple(self.lists), tuple(self.globals)),
        )

    def _note_buffers(self) -> None:
        for statement in self.loop.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
                buffer = self._subscript(statement.targets[0])
                if buffer is None or buffer in self.buffers or buffer[0] in self.assigned:
                    raise NotOneFunction
                if any(not _is_full(part) for part in _parts(statement.targets[0])[buffer[1] + 1 :]):
                    raise NotOneFunction
                self.buffers[buffer] = None
        self._buffer_names = {name for name, _ in self.buffers}
        if len(self._buffer_names) < len(self.buffers):
            raise NotOneFunction

    def _code(self, statements: list[ast.stmt]) -> CodeType:
        rows = [f"_list{place}" for place in range(len(self.lists))]
        rows += [f"_written{place}" for place in range(len(self.buffers))]
        slices = [*self.slices.values(), *(f"_row{place}" for place in range(len(self.buffers)))]
        names = ", ".join((*self.carried, *slices, *self.same))
        carried, results = (", ".join((*values, "")) for values in (self.carried, (f"{row}.clone()" for row in rows)))
        text = f"def loop_body({names}):\n    return ({carried}), ({results})"
        (made,) = (tree := ast.parse(text)).body
        assert isinstance(made, ast.FunctionDef)
        for node in ast.walk(made):
            if hasattr(node, "lineno"):
                ast.copy_location(node, self.loop)
        made.body = [*statements, *made.body]
        compiled = compile(ast.fix_missing_locations(tree), self.code.co_filename, "exec", dont_inherit=True)
        return next(constant for constant in compiled.co_consts if isinstance(constant, CodeType))

    def _statement(self, statement: ast.stmt) -> ast.stmt:
        if isinstance(statement, ast.Expr):
            return self._append(statement)
        if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            raise NotOneFunction
        (target,) = statement.targets
        value = self.visit(statement.value)
        if isinstance(target, ast.Subscript):
            place = [*self.buffers].index(self._subscript(target))  # type: ignore[arg-type]
            made = ast.parse(f"_written{place} = _value.to(_row{place}).expand_as(_row{place})").body[0]
            made.value.func.value.func.value = value  # type: ignore[attr-defined]
            return self._located(made, statement)
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(name, ast.Name) for name in targets):
            raise NotOneFunction
        for name in targets:
            self._require_local(name.id)  # type: ignore[attr-defined]
        self.before |= {name.id for name in targets}  # type: ignore[attr-defined]
        return ast.copy_location(ast.Assign([target], value), statement)

    def _append(self, statement: ast.Expr) -> ast.stmt:
        call = statement.value
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "append"
            and isinstance(call.func.value, ast.Name)
            and len(call.args) == 1
            and not call.keywords
        ):
            raise NotOneFunction
        name = call.func.value.id
        own = (*self.code.co_varnames, *self.code.co_cellvars, *self.code.co_freevars)
        if "torch" in own or name in self.lists or not _is_only_joined(self.function, name, call.func.value):
            raise NotOneFunction
        self._require_local(name)
        made = ast.parse(f"_list{len(self.lists)} = _value").body[0]
        self.lists[name] = None
        made.value = self.visit(call.args[0])  # type: ignore[attr-defined]
        return self._located(made, statement)

    @staticmethod
    def _located(made: ast.stmt, statement: ast.stmt) -> ast.stmt:
        for node in ast.walk(made):
            if "lineno" in node._attributes and not isinstance(node, ast.expr):
                ast.copy_location(node, statement)
        return made

    def _require_local(self, name: str) -> None:
        if name not in self.code.co_varnames or name in self.code.co_cellvars or name.startswith("_"):
            raise NotOneFunction

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ALLOWED):
            raise NotOneFunction
        return super().visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr.startswith(HIDDEN):
            raise NotOneFunction
        if isinstance(node.value, ast.Name) and node.value.id in self._buffer_names and node.attr in METADATA:
            self.same[node.value.id] = None
            return node
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = node.id
        if name == self.index or name in self._buffer_names or name.startswith("_"):
            raise NotOneFunction
        if name in self.before:
            return node
        if name in self.code.co_varnames:
            self._require_local(name)
            (self.carried if name in self.assigned else self.same)[name] = None
        elif name in (*self.code.co_cellvars, *self.code.co_freevars):
            raise NotOneFunction
        else:
            self.globals[name] = None
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        found = self._subscript(node)
        if found is None:
            return self.generic_visit(node)
        name, dimension = found
        if name in self.assigned or name in self._buffer_names:
            raise NotOneFunction
        self._require_local(name)
        row = ast.copy_location(ast.Name(self.slices.setdefault(found, f"_slice{len(self.slices)}"), ast.Load()), node)
        parts = [part for place, part in enumerate(_parts(node)) if place != dimension]
        if all(map(_is_full, parts)):
            return row
        return ast.copy_location(ast.Subscript(row, ast.Tuple(parts, ast.Load()), ast.Load()), node)

    def _subscript(self, node: ast.Subscript) -> tuple[str, int] | None:
        """Return the name and the dimension of `name[:, index]`; None if the subscript is not of this form."""
        parts = _parts(node)
        places = [place for place, part in enumerate(parts) if isinstance(part, ast.Name) and part.id == self.index]
        if not isinstance(node.value, ast.Name) or len(places) != 1 or not all(map(_is_full, parts[: places[0]])):
            return None
        rest = [inner for part in parts[places[0] + 1 :] for inner in ast.walk(part)]
        if any(not isinstance(part, CONSTANTS) or getattr(part, "value", None) is ... for part in rest):
            return None
        return node.value.id, places[0]


def _parts(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _is_full(part: ast.expr) -> bool:
    return isinstance(part, ast.Slice) and part.lower is None and part.upper is None and part.step is None


def _is_only_joined(function: ast.FunctionDef, name: str, append: ast.Name) -> bool:
    """Whether a variable is a new list, appended to once, and otherwise only read by `torch.stack` or `torch.cat`."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and _is_new_list(node, name)]
    stored = [node for node in nodes if not isinstance(node.ctx, ast.Load)]
    read = [node for node in nodes if isinstance(node.ctx, ast.Load) and node is not append]
    joined = {id(node.args[0]) for node in ast.walk(function) if isinstance(node, ast.Call) and _is_join(node)}
    return len(stored) == len(assigned) == 1 and all(id(node) in joined for node in read)


def _is_new_list(node: ast.Assign, name: str) -> bool:
    target, value = node.targets[-1], node.value
    is_tuple = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    pairs = list(zip(target.elts, value.elts, strict=True)) if is_tuple else [(target, value)]  # type: ignore[attr-defined]
    return len(node.targets) == 1 and any(
        isinstance(target, ast.Name) and target.id == name and isinstance(value, ast.List) and not value.elts
        for target, value in pairs
    )


def _is_join(node: ast.Call) -> bool:
    function = node.func
    is_torch = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    if not is_torch or function.value.id != "torch" or function.attr not in JOINING or not node.args:  # type: ignore[attr-defined]
        return False
    return len(node.args) <= 2 and all(keyword.arg == "dim" for keyword in node.keywords)
