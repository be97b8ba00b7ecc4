"""Loops whose iterations can be calls of one function, to which the source of the loop's body is rewritten.

Such a body only assigns local variables, appends to lists which `torch.stack` or `torch.cat` reads later, and writes to
`buffer[:, i]`. It reads the index only in subscripts such as `x[:, i]` and `x[:, i - 1]`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from thunder_core.frontend.acquire.lookasides.operators.loop_sources import (
    LoopSource,
    NotOneFunction,
    find_loop,
    live_after,
    reject,
)

ALLOWED = (
    *(ast.Name, ast.Load, ast.Attribute, ast.Call, ast.keyword, ast.Constant, ast.Tuple, ast.List, ast.Subscript),
    *(ast.Slice, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop),
    ast.IfExp,
)
CONSTANTS = (ast.Slice, ast.Constant, ast.UnaryOp, ast.unaryop, ast.Load)
JOINING = ("stack", "cat")
METADATA = ("dtype", "device")
# Attributes that differ between iterations, or change more than the values of tensors.
HIDDEN = (
    *("_", "requires_grad", "grad", "is_leaf", "data_ptr", "backward", "autograd", "register", "retain", "set_"),
    *("manual_seed", "seed", "storage", "untyped_storage", "share_memory", "item", "tolist", "numpy", "name"),
)
OWN_NAMES = ("_slice", "_row", "_list", "_written")  # beginnings of the variables of a rewritten body
LOOKS_AT_FRAMES = {"locals", "vars", "eval", "exec", "dir"}
INDEX_USE = "read the index only in subscripts such as `x[:, i]`, with colons before it and constants after it"
Selection = tuple[str, int, int]  # a tensor, the dimension of the index, and the number that is added to the index


@dataclass(frozen=True)
class LoopBody:
    """The body of a loop as a function of carried values, slices, rows of buffers, an item, and steady values.

    The function returns the carried values, and a row for each of the `lists`, then for each of the `buffers`. It
    writes to copies of the carried tensors that are `updated` in place. `globals` are the global names that it reads.
    """

    code: CodeType
    source: LoopSource
    carried: tuple[str, ...]
    slices: tuple[Selection, ...]
    buffers: tuple[Selection, ...]
    same: tuple[str, ...]
    lists: tuple[str, ...]
    globals: tuple[str, ...]
    updated: tuple[str, ...]


@lru_cache(maxsize=256)
def loop_body(code: CodeType, offset: int) -> LoopBody | str | None:
    """Return the body of the loop over the result of a call; the reason if the body cannot be a function; None without
    a loop.
    """
    try:
        source = find_loop(code, offset)
        if source is None:
            return None
        if LOOKS_AT_FRAMES & {*code.co_names}:
            return "its function reads all local variables, such as by `locals()`"
        rewriter = _Body(source, code)
        body = rewriter.result()
    except NotOneFunction as error:
        return str(error)
    live = sorted((rewriter.assigned - {*body.carried}) & live_after(code, offset))
    return f"`{live[0]}`, which its body assigns anew, may be read after the loop" if live else body


class _Body(ast.NodeTransformer):
    """Rewrites the body of a loop to a function."""

    def __init__(self, source: LoopSource, code: CodeType) -> None:
        self.source, self.loop, self.code = source, source.loop, code
        for name in (source.index, source.item):
            if name is not None:
                self._require_local(source.loop, name)
        names = (node for node in ast.walk(self.loop) if isinstance(node, ast.Name))
        self.assigned = {name.id for name in names if isinstance(name.ctx, ast.Store)}  # with the index
        self.before = {name for name in (source.item,) if name}  # names that the iteration has assigned so far
        self.carried: dict[str, None] = {}
        self.same: dict[str, None] = {}
        self.globals: dict[str, None] = {}
        self.slices: dict[Selection, str] = {}
        self.lists: dict[str, None] = {}
        self.buffers: dict[Selection, None] = {}
        self.updated: dict[str, None] = {}

    def result(self) -> LoopBody:
        """Return the function. Raise `NotOneFunction` if the body cannot be a function."""
        self._note_buffers()
        statements = self._statements(self.loop.body)
        read = {*self.carried, *(name for name, _, _ in self.slices)}
        if not self.slices and not self.source.item:
            raise reject(self.loop, "reads no slice of a tensor by the index, such as `x[:, i]`")
        for name in sorted(({*self.lists} | self._buffer_names) & read | {*self.lists} & {*self.same, *self.assigned}):
            raise reject(self.loop, f"both reads and extends `{name}` in its body")
        return LoopBody(
            *(self._code(statements), self.source, tuple(self.carried), tuple(self.slices), tuple(self.buffers)),
            *(tuple(self.same), tuple(self.lists), tuple(self.globals), tuple(self.updated)),
        )

    def _note_buffers(self) -> None:
        for statement in (node for part in self.loop.body for node in ast.walk(part)):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
                buffer = self._subscript(statement.targets[0])
                if buffer is None or buffer[0] in self.assigned:
                    raise reject(statement, f"assigns to a part of an object; {INDEX_USE}")
                if any(not _is_full(part) for part in _parts(statement.targets[0])[buffer[1] + 1 :]):
                    raise reject(statement, "assigns to a part of a slice; assign to all of `x[:, i]`")
                if buffer[0] in (name for name, _, _ in self.buffers):
                    raise reject(statement, f"assigns to `{buffer[0]}` a second time")
                self.buffers[buffer] = None
        self._buffer_names = {name for name, _, _ in self.buffers}

    def _code(self, statements: list[ast.stmt]) -> CodeType:
        rows = [f"_list{index}" for index in range(len(self.lists))]
        rows += [f"_written{index}" for index in range(len(self.buffers))]
        slices = [*self.slices.values(), *(f"_row{index}" for index in range(len(self.buffers)))]
        items = [self.source.item] if self.source.item else []
        names = ", ".join((*self.carried, *slices, *items, *self.same))
        carried, results = (", ".join((*values, "")) for values in (self.carried, rows))
        copies = "".join(f"    {name} = {name}.clone()\n" for name in self.updated)
        text = f"def loop_body({names}):\n{copies}    return ({carried}), ({results})"
        (made,) = (tree := ast.parse(text)).body
        assert isinstance(made, ast.FunctionDef)
        for node in ast.walk(made):
            if hasattr(node, "lineno"):
                ast.copy_location(node, self.loop)
        made.body = [*made.body[:-1], *statements, made.body[-1]]
        compiled = compile(ast.fix_missing_locations(tree), self.code.co_filename, "exec", dont_inherit=True)
        return next(constant for constant in compiled.co_consts if isinstance(constant, CodeType))

    # ---- statements ----

    def _statements(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [self._statement(statement) for statement in statements]

    def _statement(self, statement: ast.stmt) -> ast.stmt:
        if isinstance(statement, ast.Expr):
            return self._append(statement)
        if isinstance(statement, ast.If):
            return self._branch(statement)
        if isinstance(statement, ast.AugAssign):
            return self._update(statement)
        if isinstance(statement, ast.Pass):
            return statement
        if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            name = type(statement).__name__
            raise reject(statement, f"is a statement ({name}) other than assignments, `append` and `if`")
        (target,) = statement.targets
        value = self.visit(statement.value)
        if isinstance(target, ast.Subscript):
            index = [*self.buffers].index(self._subscript(target))  # type: ignore[arg-type]
            new_statement = ast.parse(f"_written{index} = _value.to(_row{index}).expand_as(_row{index}).clone()").body[
                0
            ]
            new_statement.value.func.value.func.value.func.value = value  # type: ignore[attr-defined]
            return self._located(new_statement, statement)
        self._assign(target)
        return ast.copy_location(ast.Assign([target], value), statement)

    def _assign(self, target: ast.expr) -> None:
        """Note the names that a target assigns."""
        if isinstance(target, ast.Tuple):
            for part in target.elts:
                self._assign(part)
        elif isinstance(target, ast.Name):
            self._require_local(target, target.id)
            self.before.add(target.id)
        else:
            raise reject(target, "assigns to an attribute; assign to a local variable")

    def _branch(self, statement: ast.If) -> ast.stmt:
        """Return a branch on constants. A name that only one branch assigns is carried if it is read later."""
        test, before = self.visit(statement.test), self.before
        self.before = {*before}
        body, after_body = self._statements(statement.body), self.before
        self.before = {*before}
        orelse = self._statements(statement.orelse)
        self.before &= after_body
        return ast.copy_location(ast.If(test, body, orelse), statement)

    def _update(self, statement: ast.AugAssign) -> ast.stmt:
        """Return `h += value`, which writes to a copy of a carried tensor."""
        if not isinstance(statement.target, ast.Name):
            raise reject(statement, "updates a part of an object in place; assign a new value to a variable")
        name = statement.target.id
        value = self.visit(statement.value)
        self._require_local(statement, name)
        if name not in self.before:
            self.carried[name] = self.updated[name] = None
        if name in self.updated and any(_assigns(node, name) for node in ast.walk(self.loop)):
            raise reject(statement, f"updates `{name}` in place, which the body also assigns")
        return ast.copy_location(ast.AugAssign(statement.target, statement.op, value), statement)

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
            raise reject(statement, "calls a function for its effect")
        name = call.func.value.id
        own = (*self.code.co_varnames, *self.code.co_cellvars, *self.code.co_freevars)
        if "torch" in own or name in self.lists or not _is_only_joined(self.source.function, name, call.func.value):
            raise reject(statement, f"appends to `{name}`, which is no new list that only `torch.stack` or `cat` reads")
        self._require_local(statement, name)
        new_statement = ast.parse(f"_list{len(self.lists)} = _value").body[0]
        self.lists[name] = None
        new_statement.value = self.visit(call.args[0])  # type: ignore[attr-defined]
        return self._located(new_statement, statement)

    @staticmethod
    def _located(new_statement: ast.stmt, statement: ast.stmt) -> ast.stmt:
        for node in ast.walk(new_statement):
            if "lineno" in node._attributes and not isinstance(node, ast.expr):
                ast.copy_location(node, statement)
        return new_statement

    def _require_local(self, node: ast.AST, name: str) -> None:
        if name not in self.code.co_varnames or name in self.code.co_cellvars or name.startswith(OWN_NAMES):
            raise reject(node, f"uses `{name}`, which is no plain local variable")

    # ---- expressions ----

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ALLOWED):
            raise reject(node, f"has an expression ({type(node).__name__}) that a recorded loop cannot contain")
        return super().visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr.startswith(HIDDEN):
            raise reject(node, f"uses the attribute `{node.attr}`, which may differ between iterations")
        if isinstance(node.value, ast.Name) and node.value.id in self._buffer_names and node.attr in METADATA:
            self.same[node.value.id] = None
            return node
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = node.id
        if name == self.source.index:
            raise reject(node, f"reads the index `{name}`; {INDEX_USE}")
        if name in self._buffer_names or name.startswith(OWN_NAMES):
            raise reject(node, f"reads `{name}`, which the loop writes to")
        if name in self.before:
            return node
        if name in self.code.co_varnames:
            self._require_local(node, name)
            (self.carried if name in self.assigned else self.same)[name] = None
        elif name in (*self.code.co_cellvars, *self.code.co_freevars):
            raise reject(node, f"reads `{name}`, which several functions share; assign it to a local variable")
        else:
            self.globals[name] = None
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        subscript = self._subscript(node)
        if subscript is None:
            return self.generic_visit(node)
        name, dimension, _ = subscript
        if name in self.assigned or name in self._buffer_names:
            raise reject(node, f"reads `{name}` by the index, which the body changes")
        self._require_local(node, name)
        row = ast.copy_location(
            ast.Name(self.slices.setdefault(subscript, f"_slice{len(self.slices)}"), ast.Load()), node
        )
        parts = [part for index, part in enumerate(_parts(node)) if index != dimension]
        if all(map(_is_full, parts)):
            return row
        return ast.copy_location(ast.Subscript(row, ast.Tuple(parts, ast.Load()), ast.Load()), node)

    def _subscript(self, node: ast.Subscript) -> Selection | None:
        """Return the selection of `name[:, index]`; None if the subscript is not of this form."""
        parts = _parts(node)
        offsets = [(index, self._offset(part)) for index, part in enumerate(parts)]
        indexed = [(index, offset) for index, offset in offsets if offset is not None]
        if not isinstance(node.value, ast.Name) or len(indexed) != 1 or not all(map(_is_full, parts[: indexed[0][0]])):
            return None
        rest = [inner for part in parts[indexed[0][0] + 1 :] for inner in ast.walk(part)]
        if any(not isinstance(part, CONSTANTS) or getattr(part, "value", None) is ... for part in rest):
            return None
        return node.value.id, *indexed[0]

    def _offset(self, part: ast.expr) -> int | None:
        """Return the number that is added to the index; None if the part is not the index and a number."""
        if isinstance(part, ast.Name) and part.id == self.source.index:
            return 0
        if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Add | ast.Sub):
            return None
        number = part.right.value if isinstance(part.right, ast.Constant) else None
        if type(number) is not int or not isinstance(part.left, ast.Name) or part.left.id != self.source.index:
            return None
        return number if isinstance(part.op, ast.Add) else -number


def _assigns(node: ast.AST, name: str) -> bool:
    """Whether a node is a statement that assigns a new value to a variable."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    stored = (part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    return any(part.id == name and isinstance(part.ctx, ast.Store) for part in stored)


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
