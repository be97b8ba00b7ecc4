"""Rewriting of a loop's body, as source, to a function that is called once for each iteration.

A body can be rewritten if it only assigns local variables, appends to lists that `torch.stack` or `torch.cat` reads
after the loop, and writes to `buffer[:, i]`. The body may read the index `i` only in subscripts such as `x[:, i]` and
`x[:, i - 1]`. `rolled_loops` records the function as the body of one `scan` or `map_slices`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from thunder_core.frontend.acquire.lookasides.operators.loop_sources import (
    LoopSource,
    UnsupportedLoopSource,
    find_loop,
    is_only_joined,
    live_after,
    reject,
)

ALLOWED_NODES = (
    *(ast.Name, ast.Load, ast.Attribute, ast.Call, ast.keyword, ast.Constant, ast.Tuple, ast.List, ast.Subscript),
    *(ast.Slice, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop),
    ast.IfExp,
)
# Nodes of the constant subscripts that may follow the index, such as `1:3` in `x[:, i, 1:3]`.
CONSTANT_SUBSCRIPT_NODES = (ast.Slice, ast.Constant, ast.UnaryOp, ast.unaryop, ast.Load)
BUFFER_ATTRIBUTES = ("dtype", "device")  # attributes of a buffer that the body may read
# Beginnings of attributes whose values differ between iterations, or whose use changes more than the values of tensors.
FORBIDDEN_ATTRIBUTE_PREFIXES = (
    *("_", "requires_grad", "grad", "is_leaf", "data_ptr", "backward", "autograd", "register", "retain", "set_"),
    *("manual_seed", "seed", "storage", "untyped_storage", "share_memory", "item", "tolist", "numpy", "name"),
)
GENERATED_NAME_PREFIXES = ("_slice", "_row", "_list", "_written")  # beginnings of the variables that rewriting adds
# Functions that read all local variables of their caller.
FRAME_READERS = {"locals", "vars", "eval", "exec", "dir", "_getframe"}
INDEX_RULE = "read the index only in subscripts such as `x[:, i]`, with colons before it and constants after it"
# A subscript such as `x[:, i - 1]`: the name of the tensor, the dimension of the index, and the number that is added to
# the index. Here, ("x", 1, -1).
IndexedSubscript = tuple[str, int, int]


@dataclass(frozen=True)
class LoopBody:
    """The body of a loop as a function.

    The parameters of `code` are, in this order: the variables that are `carried` from one iteration to the next, the
    iteration's slice of a tensor for each of `slices`, the iteration's row of a tensor for each of `buffers`, the
    variable of the iteration's tensor in loops over `unbind`, and the `invariants`, which the body only reads.

    The function returns two tuples: the new values of the carried variables, and the rows, which are the tensors that
    the iteration appends to each of `lists` and writes to each of `buffers`. A carried tensor that is
    `updated_in_place` is first copied, and the function writes to the copy. `global_names` are the globals that the
    function reads.
    """

    code: CodeType
    source: LoopSource
    carried: tuple[str, ...]
    slices: tuple[IndexedSubscript, ...]
    buffers: tuple[IndexedSubscript, ...]
    invariants: tuple[str, ...]
    lists: tuple[str, ...]
    global_names: tuple[str, ...]
    updated_in_place: tuple[str, ...]


@lru_cache(maxsize=256)
def rewrite_loop_body(code: CodeType, offset: int) -> LoopBody | str | None:
    """Rewrite the body of the loop that iterates over the result of the call at `offset`.

    Returns the `LoopBody`, the reason as a string if the body cannot be rewritten, or None if there is no such loop or
    no source.
    """
    try:
        source = find_loop(code, offset)
        if source is None:
            return None
        if FRAME_READERS & {*code.co_names}:
            return "its function reads all local variables, such as by `locals()`"
        rewriter = _BodyRewriter(source, code)
        body = rewriter.rewrite()
    except UnsupportedLoopSource as error:
        return str(error)
    live = sorted((rewriter.assigned - {*body.carried}) & live_after(code, offset))
    return f"`{live[0]}`, which its body assigns, may be read after the loop" if live else body


class _BodyRewriter(ast.NodeTransformer):
    """Rewrites the body of a loop to a function.

    The `visit` methods rewrite expressions and collect the variables that the expressions read. The other methods
    rewrite statements, in the order of the source.
    """

    def __init__(self, source: LoopSource, code: CodeType) -> None:
        self.source, self.loop, self.code = source, source.loop, code
        for name in (source.index, source.item):
            if name is not None:
                self._require_local(source.loop, name)
        names = (node for node in ast.walk(self.loop) if isinstance(node, ast.Name))
        # Names that the loop assigns anywhere, including the index, and names that are assigned before the statement
        # that is being rewritten.
        self.assigned = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        self.assigned_so_far = {name for name in (source.item,) if name}
        # The fields of `LoopBody`, as dictionaries that keep the order. `slices` has the parameter of each slice.
        self.carried: dict[str, None] = {}
        self.invariants: dict[str, None] = {}
        self.global_names: dict[str, None] = {}
        self.slices: dict[IndexedSubscript, str] = {}
        self.lists: dict[str, None] = {}
        self.buffers: dict[IndexedSubscript, None] = {}
        self.updated_in_place: dict[str, None] = {}
        self._buffer_names: set[str] = set()

    def rewrite(self) -> LoopBody:
        """Return the body as a function. Raise `UnsupportedLoopSource` if the body cannot be a function."""
        self._collect_buffers()
        statements = self._rewrite_statements(self.loop.body)
        read = {*self.carried, *(name for name, _, _ in self.slices)}
        if not self.slices and not self.source.item:
            raise reject(self.loop, "reads no slice of a tensor by the index, such as `x[:, i]`")
        extended = {*self.lists} | self._buffer_names
        for name in sorted(extended & read | {*self.lists} & {*self.invariants, *self.assigned}):
            raise reject(self.loop, f"both reads and extends `{name}` in its body")
        return LoopBody(
            *(self._compile(statements), self.source, tuple(self.carried), tuple(self.slices), tuple(self.buffers)),
            *(tuple(self.invariants), tuple(self.lists), tuple(self.global_names), tuple(self.updated_in_place)),
        )

    def _collect_buffers(self) -> None:
        """Collect the tensors of statements such as `buffer[:, i] = value`. Reject other writes to subscripts."""
        for statement in (node for part in self.loop.body for node in ast.walk(part)):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
                buffer = self._indexed_subscript(statement.targets[0])
                if buffer is None or buffer[0] in self.assigned:
                    raise reject(statement, f"assigns to a part of an object; {INDEX_RULE}")
                if any(not _is_full(part) for part in _subscripts(statement.targets[0])[buffer[1] + 1 :]):
                    raise reject(statement, "assigns to a part of a slice; assign to all of `x[:, i]`")
                if buffer[0] in (name for name, _, _ in self.buffers):
                    raise reject(statement, f"assigns to `{buffer[0]}` a second time")
                self.buffers[buffer] = None
        self._buffer_names = {name for name, _, _ in self.buffers}

    def _compile(self, statements: list[ast.stmt]) -> CodeType:
        """Compile a function of the rewritten statements, which keep their lines in the user's file."""
        rows = [f"_list{index}" for index in range(len(self.lists))]
        rows += [f"_written{index}" for index in range(len(self.buffers))]
        slices = [*self.slices.values(), *(f"_row{index}" for index in range(len(self.buffers)))]
        items = [self.source.item] if self.source.item else []
        names = ", ".join((*self.carried, *slices, *items, *self.invariants))
        carried, results = (", ".join((*values, "")) for values in (self.carried, rows))
        copies = "".join(f"    {name} = {name}.clone()\n" for name in self.updated_in_place)
        text = f"def loop_body({names}):\n{copies}    return ({carried}), ({results})"
        (function,) = (tree := ast.parse(text)).body
        assert isinstance(function, ast.FunctionDef)
        for node in ast.walk(function):
            if hasattr(node, "lineno"):
                ast.copy_location(node, self.loop)
        function.body = [*function.body[:-1], *statements, function.body[-1]]
        compiled = compile(ast.fix_missing_locations(tree), self.code.co_filename, "exec", dont_inherit=True)
        return next(constant for constant in compiled.co_consts if isinstance(constant, CodeType))

    # ---- statements ----

    def _rewrite_statements(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [self._rewrite_statement(statement) for statement in statements]

    def _rewrite_statement(self, statement: ast.stmt) -> ast.stmt:
        """Rewrite a statement; values must be visited before their targets count as assigned."""
        if isinstance(statement, ast.Expr):
            return self._rewrite_append(statement)
        if isinstance(statement, ast.If):
            return self._rewrite_if(statement)
        if isinstance(statement, ast.AugAssign):
            return self._rewrite_update(statement)
        if isinstance(statement, ast.Pass):
            return statement
        if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            name = type(statement).__name__
            raise reject(statement, f"is a statement ({name}) other than assignments, `append` and `if`")
        (target,) = statement.targets
        value = self.visit(statement.value)
        if isinstance(target, ast.Subscript):
            index = [*self.buffers].index(self._indexed_subscript(target))  # type: ignore[arg-type]
            row = f"_row{index}"
            new_statement = ast.parse(f"_written{index} = _value.to({row}).expand_as({row}).clone()").body[0]
            # The object of `.to`, below `.expand_as` and `.clone`: the assigned value takes the position of `_value`.
            new_statement.value.func.value.func.value.func.value = value  # type: ignore[attr-defined]
            return self._with_location(new_statement, statement)
        self._note_assigned(target)
        return ast.copy_location(ast.Assign([target], value), statement)

    def _note_assigned(self, target: ast.expr) -> None:
        """Add the names that a target assigns to `assigned_so_far`."""
        if isinstance(target, ast.Tuple):
            for part in target.elts:
                self._note_assigned(part)
        elif isinstance(target, ast.Name):
            self._require_local(target, target.id)
            self.assigned_so_far.add(target.id)
        else:
            raise reject(target, "assigns to an attribute; assign to a local variable")

    def _rewrite_if(self, statement: ast.If) -> ast.stmt:
        """Rewrite an `if` with both of its branches.

        Only names that both branches assign count as assigned afterwards. A name that one branch assigns is carried if
        the body reads the name later.
        """
        test, before = self.visit(statement.test), self.assigned_so_far
        self.assigned_so_far = {*before}
        body, after_body = self._rewrite_statements(statement.body), self.assigned_so_far
        self.assigned_so_far = {*before}
        orelse = self._rewrite_statements(statement.orelse)
        self.assigned_so_far &= after_body
        return ast.copy_location(ast.If(test, body, orelse), statement)

    def _rewrite_update(self, statement: ast.AugAssign) -> ast.stmt:
        """Rewrite `h += value`.

        If the iteration has not assigned `h` before, `h` is a carried tensor, and the function updates a copy of `h`.
        """
        if not isinstance(statement.target, ast.Name):
            raise reject(statement, "updates a part of an object in place; assign a new value to a variable")
        name = statement.target.id
        value = self.visit(statement.value)
        self._require_local(statement, name)
        if name not in self.assigned_so_far:
            self.carried[name] = self.updated_in_place[name] = None
        if name in self.updated_in_place and any(_assigns(node, name) for node in ast.walk(self.loop)):
            raise reject(statement, f"updates `{name}` in place, which the body also assigns")
        return ast.copy_location(ast.AugAssign(statement.target, statement.op, value), statement)

    def _rewrite_append(self, statement: ast.Expr) -> ast.stmt:
        """Rewrite `list.append(value)` to an assignment of the value to a row. Reject all other expressions."""
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
        local_names = (*self.code.co_varnames, *self.code.co_cellvars, *self.code.co_freevars)
        is_joined = is_only_joined(self.source.function, name, call.func.value)
        if "torch" in local_names or name in self.lists or not is_joined:
            reason = f"appends to `{name}`, which is not a new list that only `torch.stack` or `torch.cat` reads"
            raise reject(statement, reason)
        self._require_local(statement, name)
        new_statement = ast.parse(f"_list{len(self.lists)} = _value").body[0]
        self.lists[name] = None
        new_statement.value = self.visit(call.args[0])  # type: ignore[attr-defined]
        return self._with_location(new_statement, statement)

    @staticmethod
    def _with_location(new_statement: ast.stmt, statement: ast.stmt) -> ast.stmt:
        """Give a new statement the line of the statement that it replaces. Its expressions keep their own lines."""
        for node in ast.walk(new_statement):
            if "lineno" in node._attributes and not isinstance(node, ast.expr):
                ast.copy_location(node, statement)
        return new_statement

    def _require_local(self, node: ast.AST, name: str) -> None:
        """Reject a variable that is not local, that an inner function shares, or that has a name of rewriting's own."""
        is_local = name in self.code.co_varnames and name not in self.code.co_cellvars
        if not is_local or name.startswith(GENERATED_NAME_PREFIXES):
            raise reject(node, f"uses `{name}`, which is not a plain local variable")

    # ---- expressions ----

    def visit(self, node: ast.AST) -> Any:
        """Rewrite an expression and its parts. Reject kinds of expressions that a recorded loop cannot contain."""
        if not isinstance(node, ALLOWED_NODES):
            raise reject(node, f"has an expression ({type(node).__name__}) that a recorded loop cannot contain")
        return super().visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Reject attributes that may differ between iterations. A buffer's dtype and device may be read."""
        if node.attr.startswith(FORBIDDEN_ATTRIBUTE_PREFIXES):
            raise reject(node, f"uses the attribute `{node.attr}`, which may differ between iterations")
        if isinstance(node.value, ast.Name) and node.value.id in self._buffer_names and node.attr in BUFFER_ATTRIBUTES:
            self.invariants[node.value.id] = None
            return node
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Collect a variable that the body reads: carried, invariant or global. Its name stays."""
        name = node.id
        if name == self.source.index:
            raise reject(node, f"reads the index `{name}`; {INDEX_RULE}")
        if name in self._buffer_names or name.startswith(GENERATED_NAME_PREFIXES):
            raise reject(node, f"reads `{name}`, which the loop writes to")
        if name in self.assigned_so_far:
            return node
        if name in self.code.co_varnames:
            self._require_local(node, name)
            (self.carried if name in self.assigned else self.invariants)[name] = None
        elif name in (*self.code.co_cellvars, *self.code.co_freevars):
            raise reject(node, f"reads `{name}`, which several functions share; assign it to a local variable")
        else:
            self.global_names[name] = None
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace `x[:, i, 1:]` by `_slice0[:, 1:]`, where `_slice0` is the parameter for the slice `x[:, i]`."""
        subscript = self._indexed_subscript(node)
        if subscript is None:
            return self.generic_visit(node)
        name, dimension, _ = subscript
        if name in self.assigned or name in self._buffer_names:
            raise reject(node, f"reads `{name}` by the index, which the body changes")
        self._require_local(node, name)
        row = ast.copy_location(
            ast.Name(self.slices.setdefault(subscript, f"_slice{len(self.slices)}"), ast.Load()), node
        )
        parts = [part for index, part in enumerate(_subscripts(node)) if index != dimension]
        if all(map(_is_full, parts)):
            return row
        return ast.copy_location(ast.Subscript(row, ast.Tuple(parts, ast.Load()), ast.Load()), node)

    def _indexed_subscript(self, node: ast.Subscript) -> IndexedSubscript | None:
        """Return the tensor, dimension and offset of a subscript such as `name[:, index + 1]`.

        Returns None if the subscript does not use the index, or is not of this form.
        """
        parts = _subscripts(node)
        offsets = [(index, self._offset_from_index(part)) for index, part in enumerate(parts)]
        indexed = [(index, offset) for index, offset in offsets if offset is not None]
        if not isinstance(node.value, ast.Name) or len(indexed) != 1 or not all(map(_is_full, parts[: indexed[0][0]])):
            return None
        rest = [inner for part in parts[indexed[0][0] + 1 :] for inner in ast.walk(part)]
        if any(not isinstance(part, CONSTANT_SUBSCRIPT_NODES) or getattr(part, "value", None) is ... for part in rest):
            return None
        return node.value.id, *indexed[0]

    def _offset_from_index(self, part: ast.expr) -> int | None:
        """Return the number that is added to the index, such as -1 in `index - 1`.

        Returns None if this part of a subscript is neither the index nor the index plus or minus a number.
        """
        if isinstance(part, ast.Name) and part.id == self.source.index:
            return 0
        if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Add | ast.Sub):
            return None
        number = part.right.value if isinstance(part.right, ast.Constant) else None
        if type(number) is not int or not isinstance(part.left, ast.Name) or part.left.id != self.source.index:
            return None
        return number if isinstance(part.op, ast.Add) else -number


def _assigns(node: ast.AST, name: str) -> bool:
    """Whether a node is an assignment statement with the variable among its targets. `h += 1` is not one."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    stored = (part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    return any(part.id == name and isinstance(part.ctx, ast.Store) for part in stored)


def _subscripts(node: ast.Subscript) -> list[ast.expr]:
    """Return the subscript of each dimension, such as `:` and `i` of `x[:, i]`."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _is_full(part: ast.expr) -> bool:
    """Whether a subscript of a dimension is `:`."""
    return isinstance(part, ast.Slice) and part.lower is None and part.upper is None and part.step is None
