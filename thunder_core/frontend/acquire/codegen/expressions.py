"""Write the Python expressions with which an epilogue builds the program's result and the values of its effects."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import CannotReplay
from thunder_core.frontend.acquire.codegen.rebuilding import (
    class_of_hidden_method,
    is_rebuildable,
    name_of_method,
    parts_of,
)
from thunder_core.frontend.acquire.codegen.tensor_expressions import (
    OBJECTS,
    SET_ATTRIBUTES,
    TensorExpressions,
    snake_case,
)
from thunder_core.frontend.acquire.outside.namespaces import items_of
from thunder_core.frontend.acquire.outside.reductions import (
    Frozen,
    Reduction,
    changed_attributes,
    is_bound_in_c,
    reduction_of,
    root_of_array,
)
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.sequences import SEQUENCE_CLASSES, Progression
from thunder_core.tracing.capture.torch_facts.autograd_nodes import tensor_and_steps_to
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText
from thunder_core.tracing.ir.constants import BY_IDENTITY, CONSTANT_CONTAINERS, is_constant
from thunder_core.tracing.ir.literal import LibraryFunction, attribute_of, dotted_name, keyword_argument, literal
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.stored_attributes import attributes_of, namespace_of, pairs_of
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement
from thunder_core.tracing.ir.tree import is_struct_sequence
from thunder_core.tracing.library.backward_hooks import Hook, node_at

NEW = LibraryFunction(OBJECTS, "new")  # makes an object of a class without calling the class
RESTORE = LibraryFunction(OBJECTS, "restore")  # restores the state of an object that a reduction made
# The classes that have displays, with the form of a display of items.
DISPLAYS: dict[type, str] = {list: "[{}]", set: "{{{}}}", dict: ""}


class Expressions(TensorExpressions):
    """The writer of expressions for values, and of the statements on which these expressions depend (`bsyms`).

    The prologue returns outside objects, and the computation returns tensors. The epilogue rebuilds all other objects.
    """

    def value(self, value: Any, where: str) -> str:
        """Return an expression for a value at the end of tracing; `where` is its place in error messages."""
        if issubclass(type(value), SymbolicNumber) and value.size is not None:
            value = value.numbers.simplify_number(value)
        if type(value) is SymbolicText and value.text is not None:
            value = value.text
        if type(value) in SEQUENCE_CLASSES and value.is_read:
            value = value.real()
        return next(text for rule in EXPRESSIONS if (text := rule(self, value, where)) is not None)

    # ---- rules, in the order in which they are tried: an expression, or None if the rule does not apply --------------

    def tensor(self, value: Any, _where: str) -> str | None:
        """Return the expression of a tensor."""
        return self._tensor(value) if issubclass(type(value), torch.Tensor) else None

    def constant(self, value: object, _where: str) -> str | None:
        """Return a constant as a literal."""
        return literal(value, self.scope) if is_constant(value) else None

    def array(self, value: object, where: str) -> str | None:
        """Return the expression of a NumPy array that shares a tensor's memory."""
        shared = self._tensor_behind_array(value)
        return None if shared is None else f"{self.value(shared, where)}.detach().numpy()"

    def frozen_object(self, value: Any, _where: str) -> str | None:
        """Return the name of a constant of the epilogue for a `Frozen` object, which is the same at each call."""
        return self.scope.constant(value.value, "kept") if issubclass(type(value), Frozen) else None

    def symbolic_number(self, value: Any, _where: str) -> str | None:
        """Return the name of a number that the prologue or the computation returns."""
        if not issubclass(type(value), SymbolicNumber):
            return None
        if value.source is not None:
            return self.outside(value.source)
        proxy: Proxy = value.proxy
        self.computed_inputs[proxy.name] = proxy
        return proxy.name

    def symbolic_sequence(self, value: Any, where: str) -> str | None:
        """Emit a list, tuple or range of symbolic length; return its name."""
        if type(value) not in SEQUENCE_CLASSES:
            return None
        name = self._name(value.kind.__name__)
        self._names_of_built_objects[id(value)] = (value, name)
        parts = [self._progression(progression, where) for progression in value.progressions]
        items = ", ".join(f"*{part}" for part in parts)
        self.bsyms.append(
            python_statement(parts[0] if value.kind is range else f"{value.kind.__name__}([{items}])", Proxy(name))
        )
        return name

    def _progression(self, progression: Progression, where: str) -> str:
        """Return the expression of an arithmetic progression, such as `range(s0, s0 + 2 * s1, 2)`."""
        start, count = self.value(progression.start, where), self.value(progression.count, where)
        if not progression.step:
            return f"[{start}] * {count}"
        return f"range({start}, {start} + {progression.step} * {count}, {progression.step})"

    def hook_of_computation(self, value: object, _where: str) -> str | None:
        """Return the name of a backward hook or of its handle, which the computation creates."""
        proxy = self._hook_of_computation(value)
        if proxy is not None:
            self.computed_inputs[proxy.name] = proxy
        return None if proxy is None else proxy.name

    def node(self, value: Any, _where: str) -> str | None:
        """Return the name of a node of autograd's graph, which the computation returns."""
        is_node = issubclass(type(value), Node) and self._recorder is not None
        return self._node(value, self._recorder) if is_node and self._recorder else None

    def built_object(self, value: object, _where: str) -> str | None:
        """Return the name of an object that an earlier statement builds."""
        return self._names_of_built_objects[id(value)][1] if id(value) in self._names_of_built_objects else None

    def from_outside(self, value: object, _where: str) -> str | None:
        """Return the name of an object that the prologue returns."""
        path = self._path_of(value)
        return None if path is None else self.outside(path)

    def made_of_parts(self, value: object, where: str) -> str | None:
        """Return the expression of a slice or a `torch.Size`, which is made of other values."""
        if type(value) not in CONSTANT_CONTAINERS:
            return None
        parts = self.value(tuple(CONSTANT_CONTAINERS[type(value)](value)), where)
        return self.scope.importing(f"torch.Size({parts})", "torch") if type(value) is torch.Size else f"slice{parts}"

    def plain_tuple(self, value: object, where: str) -> str | None:
        """Return a tuple as a display."""
        if type(value) is not tuple:
            return None
        inner = ", ".join(self.value(item, f"{where}[{i}]") for i, item in enumerate(value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"

    def method(self, value: Any, where: str) -> str | None:
        """Return the expression of a bound method, of Python or of C."""
        if not issubclass(type(value), types.MethodType) and not is_bound_in_c(value):
            return None
        owner = self.value(value.__self__, where)
        if is_bound_in_c(value) and (kind := class_of_hidden_method(value)) is not None:
            return f"{literal(kind, self.scope)}.{value.__name__}.__get__({owner})"
        name = name_of_method(value)
        if name is None:
            self.scope.imports.add("types")
            return f"types.MethodType({self.value(value.__func__, where)}, {owner})"
        return attribute_of(owner if owner.isidentifier() else f"({owner})", name)

    def function(self, value: Any, where: str) -> str | None:
        """Emit a function that the program created and that cannot be imported by its name; return its name."""
        if not issubclass(type(value), types.FunctionType) or dotted_name(value) is not None:
            return None
        return self._rebuild_function(value, where)

    def reduction_name(self, value: object, where: str) -> str | None:
        """Emit the call that rebuilds an object with state in C; return the object's name."""
        reduction = self._reduction(value, where)
        return None if reduction is None else self._emit_reduction(value, reduction, where)

    def named_object(self, value: object, _where: str) -> str | None:
        """Return the dotted name of a class, a function or a module."""
        return literal(value, self.scope) if issubclass(type(value), BY_IDENTITY) else None

    def cell(self, value: Any, where: str) -> str | None:
        """Emit a closure cell; return its name."""
        return self._rebuild_cell(value, where) if issubclass(type(value), types.CellType) else None

    def display(self, value: object, where: str) -> str | None:
        """Return a list, set or dict that is mentioned only once as a display, such as `[x, y]`."""
        mentioned_once = type(value) in DISPLAYS and self._mention_counts[id(value)] == 1
        return self._display(value, where) if mentioned_once else None

    def rebuild(self, value: object, where: str) -> str | None:
        """Emit the statements that build any other object; return its name or expression."""
        return self._rebuild(value, where)

    # ---- parts of the rules -------------------------------------------------------------------------------------

    def _count_mentions(self, value: Any, where: str) -> None:
        """Count the mentions of each object to rebuild. A container with only one mention becomes a display."""
        if issubclass(type(value), SymbolicNumber | Frozen) or is_constant(value) or self._path_of(value) is not None:
            return
        if self._hook_of_computation(value) is not None:
            return
        if type(value) in SEQUENCE_CLASSES:
            if value.is_read:
                self._count_mentions(value.real(), where)
            return
        if (shared := self._tensor_behind_array(value)) is not None:
            self._count_mentions(shared, where)
            return
        self._mention_counts[id(value)] = self._mention_counts.get(id(value), 0) + 1
        if self._mention_counts[id(value)] == 1:
            reduction = self._reduction(value, where)
            for part in parts_of(value) if reduction is None else reduction.parts:
                self._count_mentions(part, where)

    def _hook_of_computation(self, value: object) -> Proxy | None:
        """Return the proxy of a backward hook or of its handle, if the computation creates it; otherwise None."""
        may_be_hook = self._recorder is not None and issubclass(type(value), Hook | RemovableHandle)
        return self._recorder.tensors.proxy_of_new_object(value) if may_be_hook and self._recorder else None

    def _node(self, node: Node, recorder: Recorder) -> str | None:
        """Make the computation return an autograd node; return its name, or None if no tensor leads to the node."""
        proxy = recorder.tensors.proxy_of_new_object(node)
        if proxy is None:
            steps_to_node = None if recorder.gradients.has_run else tensor_and_steps_to(node, recorder.tensors.latest)
            if steps_to_node is None:
                return None
            tensor, steps = steps_to_node
            proxy, args = recorder.tensors.new_object_proxy(node), (recorder.tensors.proxy(tensor), steps)
            recorder.bound_symbols.append(BoundSymbol(symbol_of(node_at), args, {}, proxy, ordered=True))
        self.computed_inputs[proxy.name] = proxy
        return proxy.name

    def _tensor_behind_array(self, value: object) -> torch.Tensor | None:
        """Return the tensor whose memory a NumPy array shares; None for other values."""
        return None if self._recorder is None else self._recorder.data.tensor_of(value)

    def _reduction(self, value: object, where: str) -> Reduction | None:
        """Return the call that rebuilds an object with state in C, or None for other objects.

        Raises `CannotReplay` for NumPy arrays that share memory.
        """
        if id(value) not in self._reductions:
            root = root_of_array(value)
            is_of_tensor = self._recorder is not None and self._recorder.data.owns(root)
            if (is_of_tensor or self._array_roots.setdefault(id(root), value) is not value) and root is not None:
                raise CannotReplay(
                    f"{where} contains NumPy arrays that share memory with each other or with a tensor, which cannot "
                    "be rebuilt for the next call",
                    fix="return only one of the arrays, or return copies",
                )
            self._reductions[id(value)] = (value, reduction_of(value, where))
        return self._reductions[id(value)][1]

    def _emit_reduction(self, value: object, reduction: Reduction, where: str) -> str:
        """Emit the call that rebuilds an object, and the statement that restores its state; return its name."""
        if id(value) in self._reductions_in_progress:
            raise CannotReplay(
                f"{where} is or contains {object_of_class(type(value))} that contains itself, which cannot be rebuilt",
                fix="return its contents, and leave the rest uncompiled",
            )
        self._reductions_in_progress.add(id(value))
        call = reduction.call
        if isinstance(call, str):
            self.scope.imports |= {call.rpartition(".")[0]} - {"dict"}
        else:
            call = self.value(call, where)
        arguments = [self.value(part, where) for part in reduction.args]
        arguments += [keyword_argument(key, self.value(part, where)) for key, part in reduction.keywords.items()]
        name = self._name(snake_case(type(value).__name__))
        self._names_of_built_objects[id(value)] = (value, name)
        self.bsyms.append(python_statement(f"{call}({', '.join(arguments)})", Proxy(name)))
        if reduction.state is not None:
            self.bsyms.append(
                python_statement(f"{self.scope.function(RESTORE)}({name}, {self.value(reduction.state, where)})")
            )
        return name

    def _display(self, value: Any, where: str) -> str:
        """Return the display of a list, set or dict."""
        if type(value) is dict:
            pairs = (
                f"{self.value(key, where)}: {self.value(item, f'{where}[{key!r}]')}" for key, item in value.items()
            )
            return "{" + ", ".join(pairs) + "}"
        inner = ", ".join(self.value(item, f"{where}[{index}]") for index, item in enumerate(value))
        return DISPLAYS[type(value)].format(inner) if inner else f"{type(value).__name__}()"

    def _rebuild(self, value: object, where: str) -> str:
        """Emit the statements that build an object with its contents; return its name or expression.

        Raises `CannotReplay` for a class that cannot be rebuilt.
        """
        kind = type(value)
        if issubclass(kind, tuple):
            inner = self.value(tuple(items_of(value)), where)
            if namespace_of(value):
                return self._rebuild_tuple_with_attributes(value, inner, where)
            if is_struct_sequence(kind):
                return f"{literal(kind, self.scope)}({inner})"
            return f"tuple.__new__({literal(kind, self.scope)}, {inner})"
        if not is_rebuildable(kind):
            raise CannotReplay(
                f"{where} is or contains {object_of_class(kind)}, which cannot be rebuilt for the next call",
                fix="return tensors, numbers, containers or plain Python objects, and leave the rest uncompiled",
            )
        name = self._name(snake_case(kind.__name__))
        self._names_of_built_objects[id(value)] = (value, name)
        if kind in (dict, list, set):
            self.bsyms.append(python_statement(f"{kind.__name__}()", Proxy(name)))
        else:
            self.bsyms.append(python_statement(f"{self.scope.function(NEW)}({literal(kind, self.scope)})", Proxy(name)))
        self._fill(value, name, where)
        return name

    def _rebuild_tuple_with_attributes(self, value: object, inner: str, where: str) -> str:
        """Emit a tuple of a class whose instances have attributes; return its name."""
        name = self._name(snake_case(type(value).__name__))
        self._names_of_built_objects[id(value)] = (value, name)
        self.bsyms.append(python_statement(f"tuple.__new__({literal(type(value), self.scope)}, {inner})", Proxy(name)))
        self._fill(value, name, where)
        return name

    def _rebuild_function(self, function: types.FunctionType, where: str) -> str:
        """Emit a function that the program created, with its defaults and cells; return its name.

        A cell may contain the function itself, so cells get their contents after the outermost function is built.
        """
        name = self._name(function.__name__)
        self._names_of_built_objects[id(function)] = (function, name)
        self._unfinished_functions += 1
        cells = [self.value(cell, f"{where}, a variable of {function.__name__}") for cell in function.__closure__ or ()]
        self._unfinished_functions -= 1
        parts = [
            self.scope.constant(function.__code__, f"{function.__name__}_code"),
            self.scope.constant(function.__globals__, "globals"),
            repr(function.__name__),
            self.value(function.__defaults__, where),
            f"({', '.join(cells)},)" if cells else "None",
        ]
        self.scope.imports.add("types")
        self.bsyms.append(python_statement(f"types.FunctionType({', '.join(parts)})", Proxy(name)))
        for attribute in changed_attributes(function):
            value = getattr(function, attribute)
            copy = dict(value) if attribute in ("__kwdefaults__", "__dict__", "__annotations__") and value else value
            self._count_mentions(copy, where)
            self.bsyms.append(python_statement(f"{name}.{attribute} = {self.value(copy, where)}"))
        while self._empty_cells and not self._unfinished_functions:
            self._set_contents(*self._empty_cells.pop(0))
        return name

    def _rebuild_cell(self, cell: types.CellType, where: str) -> str:
        """Emit a closure cell; return its name.

        While a function is being built, the cell stays empty, and gets its contents after the outermost function.
        """
        name = self._name("cell")
        self._names_of_built_objects[id(cell)] = (cell, name)
        self.scope.imports.add("types")
        self.bsyms.append(python_statement("types.CellType()", Proxy(name)))
        if cell == types.CellType():
            return name
        if self._unfinished_functions:
            self._empty_cells.append((name, cell, where))
        else:
            self._set_contents(name, cell, where)
        return name

    def _set_contents(self, name: str, cell: types.CellType, where: str) -> None:
        """Emit the statement that gives a closure cell its contents."""
        self.bsyms.append(python_statement(f"{name}.cell_contents = {self.value(cell.cell_contents, where)}"))

    def _fill(self, value: Any, name: str, where: str) -> None:
        """Emit the statement that gives a new object its items and attributes."""
        parts = [name]
        if issubclass(type(value), dict):
            inner = ", ".join(
                f"{self.value(key, where)}: {self.value(item, f'{where}[{key!r}]')}" for key, item in pairs_of(value)
            )
            parts += [f"items={{{inner}}}"] if inner else []
        elif issubclass(type(value), list | set | deque):
            inner = ", ".join(self.value(item, f"{where}[{i}]") for i, item in enumerate(items_of(value)))
            parts += [f"items=[{inner}]"] if inner else []
        state = attributes_of(value)
        inner = ", ".join(f"{key!r}: {self.value(item, f'{where}.{key}')}" for key, item in state.items())
        parts += [f"state={{{inner}}}"] if inner else []
        if len(parts) > 1:
            self.bsyms.append(python_statement(f"{self.scope.function(SET_ATTRIBUTES)}({', '.join(parts)})"))


# The rules that `Expressions.value` tries in order; the last rule applies to all values.
EXPRESSIONS: tuple[Callable[[Expressions, Any, str], str | None], ...] = (
    Expressions.tensor,
    Expressions.constant,
    Expressions.array,
    Expressions.frozen_object,
    Expressions.symbolic_number,
    Expressions.hook_of_computation,
    Expressions.node,
    Expressions.built_object,
    Expressions.symbolic_sequence,
    Expressions.from_outside,
    Expressions.made_of_parts,
    Expressions.plain_tuple,
    Expressions.method,
    Expressions.function,
    Expressions.reduction_name,
    Expressions.named_object,
    Expressions.cell,
    Expressions.display,
    Expressions.rebuild,
)
