"""Gradients in a recording: PyTorch's autograd engine runs on fakes, and sets the `.grad` of fakes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.hooks import BackwardHook

from thunder_core.foundation.errors import OperationFailed
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.torch_facts.autograd_nodes import FROM_OUTSIDE
from thunder_core.tracing.capture.torch_facts.compiled_call import require_differentiable
from thunder_core.tracing.capture.torch_facts.graph import (
    Node,
    copy_gradient,
    executed_nodes,
    graph_of,
    has_layout_of,
    leaves_of,
    memory_of,
    shared_memory,
    skipped_checks_refused,
)
from thunder_core.tracing.capture.torch_facts.leaf_hooks import (
    AccumulationHooks,
    Hooks,
    gradient_after_hook,
    hooks_called_first,
    own_hooks,
    require_no_gradients,
    require_no_result,
)

GET, SET, DELETE = (getattr(torch.Tensor.grad, name) for name in ("__get__", "__set__", "__delete__"))


class OutsideFacts:
    """Facts about tensors from outside at the start of the program. The front end's subclass also guards the facts."""

    def gradient(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor's `.grad`."""
        return tensor.grad

    def require_leaf(self, tensor: torch.Tensor) -> None:
        """Guard that the tensor is a leaf of autograd's graph, in this call and in each later call."""

    def hooks(self, tensor: torch.Tensor) -> Hooks:  # noqa: ARG002
        """Return the hooks that a tensor had before the program."""
        return Hooks()

    def require_alive(self, nodes: Iterable[Node]) -> None:
        """Refuse a backward pass if the program no longer refers to a node on which it has registered hooks."""


class Gradients:
    """The `.grad` of the tensors in a recording, and the backward passes that the program runs.

    PyTorch's engine runs each backward pass on fakes, so that its aten operations are recorded. This class, and not the
    engine, accumulates the gradients of the leaves. (The engine copies a gradient that other code refers to. The
    recorder refers to all gradients, so the engine would copy each of them.) `switch(enabled)` turns autograd on or
    off, in the trace too. `begin()` is called before a backward pass.
    """

    def __init__(
        self, tensors: Tensors, outside: OutsideFacts, switch: Callable[[bool], None], begin: Callable[[], None]
    ) -> None:
        self.outside = outside
        self.passes = 0
        self.is_running = False
        self._tensors = tensors
        self._switch = switch
        self._begin = begin
        self._initial_gradients: dict[int, torch.Tensor | None] = {}
        self._freed_nodes: dict[int, Node] = {}
        self.hooks: list[Callable[..., Any]] = []  # registered by the program itself
        self.accumulation_hooks = AccumulationHooks()

    # ---- `.grad` --------------------------------------------------------------------------------------------

    def get(self, tensor: torch.Tensor) -> Any:
        """Return `tensor.grad`, which the program reads."""
        fake = self._fake_with_gradient(tensor)
        with torch._C.DisableTorchFunction():
            return self._tensors.to_real(fake.grad)

    def set(self, tensor: torch.Tensor, value: torch.Tensor | None) -> None:
        """Set `tensor.grad`, as the program does."""
        fake = self._fake_with_gradient(tensor)
        with torch._C.DisableTorchFunction():
            fake.grad = None if value is None else self._tensors.fake(value)

    def delete(self, tensor: torch.Tensor) -> None:
        """Delete `tensor.grad`, as the program does."""
        self.set(tensor, None)

    def changed_gradients(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Yield each outside tensor whose `.grad` was replaced, with its new value."""
        for tensor, _ in list(self._tensors.inputs.values()):
            fake = self._tensors.fake(tensor)
            with torch._C.DisableTorchFunction():
                now = fake.grad if fake.is_leaf or fake.retains_grad else None  # PyTorch warns for other tensors
            if now is self._initial_gradients.get(id(fake)):
                continue
            if id(fake) not in self._initial_gradients:
                raise OperationFailed(
                    "a backward ran where the tracer could not see it",
                    fix="call backward() in the program itself, or leave this part uncompiled",
                )
            yield tensor, self._tensors.to_real(now)

    def _fake_with_gradient(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake of a tensor, with the gradient that the tensor has at the start of the program."""
        fake = self._tensors.fake(tensor)
        if self._tensors.is_outside(tensor) and id(fake) not in self._initial_gradients:
            with torch._C.DisableTorchFunction():
                grad = self.outside.gradient(tensor)
                fake.grad = None if grad is None else self._tensors.fake(grad)
                self._initial_gradients[id(fake)] = fake.grad
        return fake

    # ---- backward passes ------------------------------------------------------------------------------------

    def backward(
        self,
        tensors: object,
        gradient: object = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: object = None,
    ) -> None:
        """Run `torch.Tensor.backward`: accumulate the gradients of the leaves in their `.grad`."""
        roots = _as_tuple(self._tensors.to_fake(tensors))
        with torch._C.DisableTorchFunction():
            graph = graph_of(roots)
            reached = self._reachable_leaves(roots, graph)
        leaves_or_inputs = reached if inputs is None else _as_given(inputs)
        leaves = [self._fake_with_gradient(leaf) for leaf in _as_tuple(leaves_or_inputs)]
        memory = self._tensors.memory()
        early = self._leaves_seen_by_functions(graph, leaves)
        with self._backward_pass(graph, leaves, retain_graph, create_graph):
            with torch._C.DisableTorchFunction(), self._accumulated_on_arrival(early, create_graph):
                if not leaves:  # the engine raises the right error
                    return torch.autograd.backward(roots, self._tensors.to_fake(gradient), retain_graph, create_graph)
                inputs_as_given, cotangents = self._tensors.to_fake((leaves_or_inputs, gradient))
                gradients = _as_tuple(
                    torch.autograd.grad(
                        roots, inputs_as_given, cotangents, retain_graph, create_graph, allow_unused=True
                    )
                )
            late = [None if id(leaf) in early else grad for leaf, grad in zip(leaves, gradients, strict=True)]
            shared = shared_memory(late, memory)
            for leaf, grad in zip(leaves, late, strict=True):
                if grad is not None:
                    self._accumulate(leaf, grad, create_graph, memory_of(grad) not in shared)
        return None

    def backward_of_all(
        self,
        tensors: object,
        grad_tensors: object = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: object = None,
        inputs: object = None,
    ) -> None:
        """Run `torch.autograd.backward`; `grad_variables` is PyTorch's former name of `grad_tensors`."""
        cotangents = grad_variables if grad_tensors is None else grad_tensors
        self.backward(tensors, cotangents, retain_graph, create_graph, inputs)

    def grad(
        self,
        outputs: object,
        inputs: object,
        grad_outputs: object = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        **options: Any,
    ) -> Any:
        """Run `torch.autograd.grad`: return the gradients."""
        roots, differentiated, cotangents = self._tensors.to_fake((_as_tuple(outputs), _as_given(inputs), grad_outputs))
        leaves = _as_tuple(differentiated)
        with torch._C.DisableTorchFunction():
            graph = graph_of(roots)
            self._reachable_leaves(roots, graph, excluded=leaves)
        with self._backward_pass(graph, leaves, retain_graph, create_graph), torch._C.DisableTorchFunction():
            gradients = torch.autograd.grad(roots, differentiated, cotangents, retain_graph, create_graph, **options)
        return self._tensors.to_real(gradients)

    def functions_called(self, tensors: object) -> list[Callable[..., Any]]:
        """Return the functions of the program that a backward pass from these tensors may call.

        These are hooks, and the backward methods of `torch.autograd.Function`. A method may be wrapped by a function of
        PyTorch (`once_differentiable`, `custom_bwd`).
        """
        with torch._C.DisableTorchFunction():
            nodes = graph_of(_as_tuple(self._tensors.to_fake(tensors)))
        methods = (getattr(kind, name) for kind in function_classes(nodes) for name in ("backward", "vjp"))
        return [*itertools.chain(*map(hooks_in, self.hooks)), *itertools.chain(*map(wrapped_functions, methods))]

    def _leaves_seen_by_functions(self, graph: list[Node], leaves: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return the leaves by their ids if a backward pass calls Python functions, which may read a leaf's `.grad`."""
        candidates = {id(leaf): leaf for leaf in leaves if leaf.requires_grad and leaf.grad_fn is None}
        if self.hooks or function_classes(graph) or any(map(self._has_outside_hooks, candidates.values())):
            return candidates
        return {}

    def _has_outside_hooks(self, leaf: torch.Tensor) -> bool:
        tensor = self._tensors.to_real(leaf)
        if not self._tensors.is_outside(tensor):
            return False
        hooks = self.outside.hooks(tensor)
        return bool(hooks.before or hooks.after)

    @contextmanager
    def _accumulated_on_arrival(self, leaves: Mapping[int, torch.Tensor], create_graph: bool) -> Iterator[None]:
        """Accumulate the gradients of leaves in the block when the engine has computed them, as eager PyTorch does.

        Functions that the engine calls later then read the new `.grad`. The engine may still use the gradient, so the
        leaf gets a copy.
        """

        def accumulate(leaf: torch.Tensor, grad: torch.Tensor) -> None:
            with torch._C._EnableTorchFunction():
                self._accumulate(leaf, grad, create_graph, can_be_taken=False)

        with ExitStack() as stack:
            for leaf in leaves.values():
                handle = leaf.register_hook(functools.partial(accumulate, leaf))  # type: ignore[no-untyped-call]
                stack.callback(handle.remove)
            yield

    @property
    def has_run(self) -> bool:
        """Whether the program has run a backward pass of its own, which called its hooks."""
        return bool(self._freed_nodes)

    def has_freed_graph(self, tensor: torch.Tensor) -> bool:
        """Whether a backward pass has freed a part of the graph of a tensor."""
        with torch._C.DisableTorchFunction():
            return any(id(node) in self._freed_nodes for node in graph_of([self._tensors.fake(tensor)]))

    def _reachable_leaves(
        self, roots: Any, graph: list[Node], excluded: Sequence[torch.Tensor] = ()
    ) -> list[torch.Tensor]:
        """Return the leaves that a backward pass reaches; refuse tensors whose graph continues outside of the
        program.
        """
        require_differentiable(graph)
        excluded_ids = set(map(id, excluded))
        leaves = [leaf for leaf in leaves_of(roots, graph) if id(leaf) not in excluded_ids]
        if any(isinstance(node, FROM_OUTSIDE) for node in graph):
            for tensor, _ in list(self._tensors.inputs.values()):
                self.outside.require_leaf(tensor)
        if not all(isinstance(leaf, FakeTensor) for leaf in leaves):
            raise OperationFailed(
                "code that is not traced added a node to the autograd graph of a tensor",
                fix="leave this part uncompiled, or write it with ordinary operations",
            )
        reached = [self._tensors.to_real(leaf) for leaf in leaves]
        for tensor in reached:
            if self._tensors.is_outside(tensor):
                self.outside.require_leaf(tensor)
        return reached

    @contextmanager
    def _backward_pass(
        self, graph: list[Node], leaves: Any, retain_graph: bool | None, create_graph: bool
    ) -> Iterator[None]:
        """Set up a backward pass that runs in the block.

        Autograd records the pass if `create_graph`. Afterwards, the executed nodes of the graph count as freed, unless
        the graph is retained.
        """
        self._begin()
        before = torch.is_grad_enabled()
        self.passes += 1
        self.is_running = True
        self._switch(create_graph)
        try:
            hooks = self._outside_hooks_of(leaves)
            with torch.autograd.set_multithreading_enabled(False), hooks, skipped_checks_refused(graph):
                yield
        finally:
            self._switch(before)
            self.is_running = False
        if not (create_graph if retain_graph is None else retain_graph):
            with torch._C.DisableTorchFunction():
                self._freed_nodes.update((id(node), node) for node in executed_nodes(graph, leaves))

    @contextmanager
    def _outside_hooks_of(self, fakes: Iterable[Any]) -> Iterator[None]:
        """Call the hooks that outside tensors had before the program, as hooks of their fakes."""
        with ExitStack() as stack:
            for fake in fakes:
                tensor = self._tensors.to_real(fake)
                if isinstance(tensor, torch.Tensor) and fake.requires_grad and self._tensors.is_outside(tensor):
                    hooks = [self.recording_hook(hook) for hook in self.outside.hooks(tensor).before]
                    stack.enter_context(hooks_called_first(fake, hooks))
            yield

    def recording_hook(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls a hook and records the hook's calls of PyTorch.

        During a backward pass, torch functions are not dispatched to the recorder; the returned function turns the
        dispatch on.
        """

        def call(*gradients: Any) -> Any:
            with torch._C._EnableTorchFunction():
                return self._tensors.to_fake(hook(*gradients))

        return call

    def _accumulate(self, leaf: torch.Tensor, grad: torch.Tensor, create_graph: bool, can_be_taken: bool) -> None:
        """Accumulate a gradient in a leaf as the engine's AccumulateGrad does, and call the hooks around the
        accumulation.

        The engine has already called the tensor's own hooks, which run before the accumulation. `can_be_taken`: nothing
        else refers to the memory of the gradient.
        """
        tensor = self._tensors.to_real(leaf)
        outside = self.outside.hooks(tensor) if self._tensors.is_outside(tensor) else Hooks()
        with torch._C.DisableTorchFunction():
            own = own_hooks(leaf)
        self.outside.require_alive(self.accumulation_hooks.nodes(leaf))
        before = self.accumulation_hooks.before(leaf)
        for hook in before:
            grad = gradient_after_hook(hook((grad,)), grad)
        may_be_kept = bool(outside.before or own.before or before)
        with torch._C.DisableTorchFunction():
            old = leaf.grad
            if old is None:
                is_taken = can_be_taken and not may_be_kept and not create_graph and has_layout_of(grad, leaf)
                leaf.grad = grad if is_taken else copy_gradient(grad, leaf)
            elif create_graph:
                leaf.grad = old + grad
            else:
                old.add_(grad)
        for hook in (*outside.after, *own.after):
            require_no_result(hook(tensor), tensor)
        for hook in self.accumulation_hooks.after(leaf):
            require_no_gradients(hook((), (grad,)))


def function_classes(nodes: Iterable[Node]) -> list[Any]:
    """Return the subclasses of `torch.autograd.Function` that nodes of the graph belong to."""
    return [node._forward_cls for node in nodes if hasattr(node, "_forward_cls")]


def hooks_in(hook: object) -> Iterator[Any]:
    """Yield a hook and, if it is one of PyTorch's wrappers for module hooks, the hooks that the wrapper calls."""
    yield hook
    for cell in getattr(hook, "__closure__", None) or ():
        contents = cell.cell_contents
        if isinstance(contents, BackwardHook):
            yield from (*contents.user_hooks, *contents.user_pre_hooks)
        elif isinstance(contents, FunctionType):
            yield contents


def wrapped_functions(function: Any) -> Iterator[Callable[..., Any]]:
    """Yield a function, and the functions that it wraps (`functools.wraps`)."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _as_tuple(tensors: Any) -> tuple[Any, ...]:
    if isinstance(tensors, torch.Tensor):
        return (tensors,)
    return tuple(tensors.values() if isinstance(tensors, Mapping) else tensors)


def _as_given(tensors: Any) -> Any:
    """Return tensors in the container in which they were passed, because PyTorch versions accept different containers
    (a dict from 2.13 on).
    """
    return tensors if isinstance(tensors, torch.Tensor | Mapping) else tuple(tensors)


AUTOGRAD: dict[Callable[..., Any], Callable[..., Any]] = {
    GET: Gradients.get,
    SET: Gradients.set,
    DELETE: Gradients.delete,
    torch.Tensor.backward: Gradients.backward,
    torch.autograd.backward: Gradients.backward_of_all,
    torch.autograd.grad: Gradients.grad,
}
