"""Expressions for tensors that a program returns or stores, and the statements that these expressions need."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import CellType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.foundation.errors import CannotReplay
from thunder_core.frontend.acquire.codegen.rebuilding import (
    attributes_of_tensor,
)
from thunder_core.frontend.acquire.codegen.variables import path_name
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.reductions import (
    Reduction,
)
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.capture.torch_facts.wrappers import is_wrapper, parts_of_wrapper
from thunder_core.tracing.capture.transform_levels import is_wrapped
from thunder_core.tracing.ir.literal import LibraryFunction, Scope, add_unique_name, literal
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement

OBJECTS = "thunder_core.tracing.library.objects"
SET_CLASS = LibraryFunction(OBJECTS, "become")
SET_ATTRIBUTES = LibraryFunction(OBJECTS, "fill")
WITH_FREED_GRAPH = LibraryFunction("thunder_core.tracing.library.freed_graph", "with_freed_graph")


class TensorExpressions(ABC):
    """Writes expressions for tensors, and for the outside objects that the prologue returns.

    An object that one expression cannot build is built by statements (`bsyms`) before the expression. `path_of(value)`
    is the path of an object that existed before the call, or None. `result_of(tensor)` is the proxy of a tensor that
    the computation returns, or None. `has_freed_graph(tensor)` is whether a `backward()` of the program has freed the
    tensor's graph. The `recorder` may be None if there are neither fakes nor NumPy arrays.
    """

    def __init__(
        self,
        path_of: Callable[[Any], Path | None],
        result_of: Callable[[torch.Tensor], TensorProxy | None],
        has_freed_graph: Callable[[torch.Tensor], bool] = lambda tensor: False,
        recorder: Recorder | None = None,
    ) -> None:
        self._used_names: set[str] = set()
        self.scope = Scope(used_names=self._used_names)
        self.bsyms: list[BoundSymbol] = []
        self.outside_inputs: dict[Path, Proxy] = {}
        self.computed_inputs: dict[str, Proxy] = {}
        self._path_of = path_of
        self._result_of = result_of
        self._has_freed_graph = has_freed_graph
        self._recorder = recorder
        self.with_grad_fn: list[torch.Tensor] = []  # returned tensors with a `grad_fn`
        self._names_of_built_objects: dict[int, tuple[Any, str]] = {}
        self._unfinished_functions = 0  # the number of functions whose cells are being written
        self._empty_cells: list[tuple[str, CellType, str]] = []  # cells that get their contents later
        self._mention_counts: dict[int, int] = {}
        self._reductions: dict[int, tuple[Any, Reduction | None]] = {}
        self._reductions_in_progress: set[int] = set()
        self._array_roots: dict[int, Any] = {}

    def outside(self, path: Path) -> str:
        """Return the name of the epilogue's input for the outside object at a path, which the prologue returns."""
        if path not in self.outside_inputs:
            self.outside_inputs[path] = Proxy(self._name(path_name(path)))
        return self.outside_inputs[path].name

    @abstractmethod
    def value(self, value: object, where: str) -> str:
        """Return an expression for a value at the end of tracing; error messages name `where` the value is."""

    def _name(self, text: str) -> str:
        """Return an unused name that resembles the text."""
        return add_unique_name(text, self._used_names)

    def _tensor(self, tensor: torch.Tensor) -> str:
        """Return the expression of a tensor: a result of the computation, an outside tensor, a wrapper or a constant.

        Raises `CannotReplay` for a tensor of a function transform that is used outside of the transform.
        """
        result = self._result_of(tensor)
        if result is not None:
            return self._computed_tensor(tensor, result)
        path = self._path_of(tensor)
        if path is not None:
            return self.outside(path)
        if is_wrapped(tensor):
            raise CannotReplay(
                "a tensor of a function transform (such as an example in torch.vmap) is used outside of the transform",
                fix="return the tensor from the transformed function",
            )
        return self._wrapper(tensor) if is_wrapper(tensor) else self.scope.constant(tensor, "tensor")

    def _wrapper(self, tensor: Any) -> str:
        """Emit the statement that builds a tensor of a wrapper subclass from its inner tensors; return its name."""
        if id(tensor) in self._names_of_built_objects:
            return self._names_of_built_objects[id(tensor)][1]
        kind, name = type(tensor), self._name(snake_case(type(tensor).__name__))
        self._names_of_built_objects[id(tensor)] = (tensor, name)
        inner = ", ".join(f"{key!r}: {self.value(part, name)}" for key, part in parts_of_wrapper(tensor))
        context = literal(tensor.__tensor_flatten__()[1], self.scope)
        shape, stride = (self._extents(tuple(extents), name) for extents in (tensor.shape, tensor.stride()))
        arguments = f"{{{inner}}}, {context}, {shape}, {stride}"
        self.bsyms.append(
            python_statement(f"{literal(kind, self.scope)}.__tensor_unflatten__({arguments})", Proxy(name))
        )
        return name

    def _extents(self, extents: tuple[Any, ...], where: str) -> str:
        """Return the expression of the sizes or the strides of a tensor. Some of them may be symbolic."""
        if self._recorder is None or self._recorder.sizes is None:
            return literal(extents, self.scope)
        return self.value(self._recorder.sizes.to_program(extents, self._recorder.numbers), where)

    def _computed_tensor(self, tensor: torch.Tensor, result: TensorProxy) -> str:
        """Return the name of a result of the computation. Emit statements that set its class, attributes and `.grad`.

        A tensor whose graph a `backward()` of the program has freed is wrapped, so that autograd reports the freed
        graph.
        """
        self.computed_inputs[result.name] = result
        if id(tensor) in self._names_of_built_objects:
            return self._names_of_built_objects[id(tensor)][1]
        self._names_of_built_objects[id(tensor)] = (tensor, result.name)
        self._restore_class_and_attributes(tensor, result.name)
        fake = tensor if self._recorder is None else self._recorder.tensors.fake(tensor)
        try:
            may_have_grad = fake.is_leaf or fake.retains_grad
        except RuntimeError:  # from `is_leaf` of a view that was made while autograd was off and then written to
            return result.name
        if may_have_grad and fake.grad is not None:
            self.bsyms.append(python_statement(f"{result.name}.grad = {self.value(fake.grad, result.name)}"))
        if fake.grad_fn is None:
            return result.name
        self.with_grad_fn.append(tensor)
        if not self._has_freed_graph(tensor):
            return result.name
        name = self._name(f"{result.name}_freed")
        self._names_of_built_objects[id(tensor)] = (tensor, name)
        self.bsyms.append(python_statement(f"{self.scope.function(WITH_FREED_GRAPH)}({result.name})", Proxy(name)))
        return name

    def _restore_class_and_attributes(self, tensor: torch.Tensor, name: str) -> None:
        """Emit the statements that set the class and the attributes of a result of the computation."""
        kind = type(tensor)
        if kind is not FakeTensor:
            self.bsyms.append(
                python_statement(f"{self.scope.function(SET_CLASS)}({name}, {literal(kind, self.scope)})")
            )
        state = attributes_of_tensor(tensor)
        if state:
            inner = ", ".join(f"{key!r}: {self.value(item, f'{name}.{key}')}" for key, item in state.items())
            self.bsyms.append(python_statement(f"{self.scope.function(SET_ATTRIBUTES)}({name}, state={{{inner}}})"))


def snake_case(name: str) -> str:
    """Convert a name in CamelCase to snake_case: `CausalLMOutput` becomes `causal_lm_output`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
