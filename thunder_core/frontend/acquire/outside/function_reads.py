"""Reads of values by name: globals, builtins, default arguments, functions of PyTorch, and all imported modules."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from thunder_core.frontend.acquire.outside.guards.containers import Keys
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.objects import HasCode
from thunder_core.frontend.acquire.outside.guards.values import Is, Values
from thunder_core.frontend.acquire.outside.namespaces import item_path
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.paths import Path, leads_from_assignment
from thunder_core.frontend.acquire.outside.sharp import OutsideReads, is_users_code
from thunder_core.frontend.acquire.outside.symbolic import Symbolic, is_only_thread
from thunder_core.tracing.capture.torch_facts.symbols import place_of
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.ir.retrace import ReadsAssignment, Retrace, RetraceReason
from thunder_core.tracing.library.changes.function_codes import has_first_code

# The classes of annotations with parts, such as `list["A"]`, `List["A"]` and `A | B`.
GENERIC_ALIASES = (types.GenericAlias, types.UnionType, type(typing.List[int]))  # noqa: UP006


class FunctionReads(Outside):
    """The outside objects, including the globals, builtins and defaults of functions, and methods of classes.

    `leave_to_eager(what, fix)` requests that eager PyTorch makes the call. `retrace(reason)` returns the exception that
    requests another trace. `assignments` maps the `id` of an array to the tensor of indices in whose place it stands.
    """

    def __init__(
        self,
        symbolic: Symbolic,
        symbol_at: Callable[[Path], Any],
        before_read_of_draw: Callable[[], None],
        outside_reads: OutsideReads | None,
        leave_to_eager: Callable[[str, str], NoReturn],
        retrace: Callable[[RetraceReason], Retrace],
    ) -> None:
        super().__init__(symbolic, symbol_at, before_read_of_draw, outside_reads)
        self._leave_to_eager = leave_to_eager
        self._retrace = retrace
        self.assignments: dict[int, torch.Tensor] = {}

    def guard(self, guard: Guard) -> None:
        """Add a guard, unless tracing itself changes the guarded value.

        If the program reads the names of all imported modules, eager PyTorch makes the call. If it reads an array that
        stands in place of the indices of an assignment, it is traced again.
        """
        if isinstance(guard, Keys) and guard.path.value is sys.modules:
            self._leave_to_eager(
                "the program reads the names of all imported modules, and tracing imports modules",
                "read `sys.modules` outside the compiled program, or look up single names",
            )
        if self.assignments and leads_from_assignment(guard.path):
            raise self._retrace(ReadsAssignment())
        super().guard(guard)

    def guard_global(self, namespace: dict[str, Any], name: str, value: object) -> None:
        """Guard a global that the program has read."""
        if self.outdated:
            self.require_up_to_date(namespace)
        if (id(namespace), name) in self._guarded_reads or self.effects.has_changed_entry(namespace, name):
            return
        self._guarded_reads.add((id(namespace), name))
        self.read(item_path(self.globals_root(namespace), name, value), value)

    def guard_builtin(self, namespace: dict[str, Any], entries: object, name: str, value: object) -> None:
        """Guard a builtin that the program has read, and that no global hides the builtin."""
        if (id(namespace), name) not in self._guarded_reads:
            self._guarded_reads.add((id(namespace), name))
            if not self.effects.has_changed_entry(namespace, name):
                self.guard_absence(self.globals_root(namespace), name)
            if type(entries) is not dict or self.effects.has_changed_entry(entries, name):
                return
            if entries.get(name, namespace) is value:
                self.read(self.globals_root(entries).item(name, value), value)

    def guard_names_in_annotations(self, annotations: object, namespace: dict[str, Any]) -> None:
        """Guard the globals and builtins in the strings of annotations, because `typing` evaluates the strings."""
        for name in dict.fromkeys(names_in_annotation(annotations)):
            if name in namespace:
                self.guard_global(namespace, name, namespace[name])
            elif name in vars(builtins):
                self.guard_builtin(namespace, vars(builtins), name, vars(builtins)[name])

    def guard_operation_name(self, function: Any) -> None:
        """Guard that PyTorch has a function under the name by which generated code calls it.

        The program may have another name for the function: `from torch import relu`, or an attribute of a module.
        """
        module, name = place_of(function) or (None, "")
        if module is None or vars(module).get(name) is not function or self.effects.has_written(module, name):
            return
        if self._guarded_reads.isdisjoint(((id(module), name), (id(vars(module)), name))):
            self._guarded_reads.add((id(module), name))
            path = self.paths.get(id(module)) or self.root("module", module.__name__, module)
            # not the path by which the program found the function, such as an attribute of a model
            self.guard(Is(path.attribute(name, function), function))

    def symbolic_global_path(self, namespace: dict[str, Any], name: str, value: object) -> Path | None:
        """Return the path to a global that is a symbolic number; None for other globals."""
        if not self._may_be_symbolic(value) or self.effects.has_changed_entry(namespace, name):
            return None
        path = item_path(self.globals_root(namespace), name, value)
        return path if self.symbolic.includes(path) else None

    def guard_defaults(self, function: types.FunctionType) -> None:
        """Guard the code and the default arguments of an outside function that the program calls.

        Symbolic numbers among the defaults are replaced by symbols until tracing ends.
        """
        path = self.paths.get(id(function))
        if path is None or (id(function), "__defaults__") in self._guarded_reads:
            return
        self._guarded_reads.add((id(function), "__defaults__"))
        if is_users_code(function.__code__) and not self.effects.has_written(function, "__code__"):
            self.guard(HasCode(path, function.__code__, has_first_code(function)))
        for name in ("__defaults__", "__kwdefaults__"):
            if self.effects.has_written(function, name):
                continue
            defaults = getattr(function, name)
            alone = type(defaults) is tuple and is_only_thread()
            if alone and (symbols := self._symbol_at(path.attribute(name, defaults))) is not None:
                function.__defaults__ = symbols
                self.effects.add_undo(functools.partial(setattr, function, name, defaults))
            elif type(defaults) is tuple and all(map(is_constant, defaults)):
                self.guard(Values(path.attribute(name, defaults), defaults))
            elif defaults:
                self.read(path.attribute(name, defaults), defaults)
                self.expand(defaults)

    def guard_class_method(self, kind: type, name: str) -> None:
        """Guard a class method that PyTorch calls, and the class that defines it."""
        self.root("class", kind.__name__, kind)
        base = next(base for base in kind.__mro__ if name in vars(base))
        self.read(self.root("class", base.__name__, base).entry(name, vars(base)[name]), vars(base)[name])

    def guard_method_call(self, owner: object, method: str, args: tuple[Any, ...], value: object) -> None:
        """Guard the result of a C method that only reads, by calling the method again at each call."""
        path = self.paths.get(id(owner))
        if path is not None:
            self.read(path.child("called", (method, args), value), value)


def names_in_annotation(annotation: Any) -> Iterator[str]:
    """Yield the names in the strings of an annotation, or of a dict of annotations."""
    kind = type(annotation)  # not isinstance, which reads the annotation's own `__class__`
    parts: tuple[object, ...] = ()
    if issubclass(kind, str | typing.ForwardRef):
        text = annotation if issubclass(kind, str) else annotation.__forward_arg__
        with contextlib.suppress(SyntaxError, ValueError):
            nodes = list(ast.walk(ast.parse(text, mode="eval")))
            yield from (node.id for node in nodes if isinstance(node, ast.Name))
            parts = tuple(node.value for node in nodes if isinstance(node, ast.Constant))  # a string within the string
    elif kind is dict:
        parts = tuple(annotation.values())
    elif issubclass(kind, GENERIC_ALIASES):
        parts = annotation.__args__
    for part in parts:
        yield from names_in_annotation(part)
