"""Autograd nodes for results of a program that are computed from other results of the program.

A program is one autograd node, so no result of the program leads to another result in the graph. Each dependent result
gets another node, which leads to the sources of the dependent result: the results that it is computed from. If the
gradient of a source is needed (`torch.autograd.grad(loss, scores)`, a hook, `retain_grad`), the backward pass is split.
Then the node of the dependent result first computes the gradients of its sources, and the program's node runs after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch.autograd.graph import Node

from thunder_core.backend.runtime.autograd_signature import DependentResult
from thunder_core.foundation.errors import NotDifferentiable
from thunder_core.passes.autodiff.autograd_node import FREED_GRAPH_MESSAGE, Compiled, refuse_hooks
from thunder_core.tracing.library.changes.node_hooks import has_hooks

ENGINE_CODE = torch.autograd.graph._engine_run_backward.__code__
INPUTS_POSITION = 3  # in the arguments of `_engine_run_backward`: the tensors whose gradients a pass computes


@dataclass(eq=False)
class SplitBackward:
    """The functions that run the backward of a program in parts.

    `backward(index)` returns the backward of the dependent result at an index. `backward(has_cotangent)` returns the
    backward of the program for the marked results. Both return None if autograd has to record the computation.
    `make_recordable()` returns a function for autograd to record. The function takes the inputs, and then tensors that
    replace the sources.
    """

    backward: Callable[[int | tuple[bool, ...]], Any]
    make_recordable: Callable[[], Callable[..., tuple[torch.Tensor, ...]]]

    @cached_property
    def recordable(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function for autograd to record, made once."""
        return self.make_recordable()


@dataclass(eq=False)
class SourceTensors:
    """The sources of a dependent result in a call. A backward pass that frees the graph frees them."""

    tensors: tuple[torch.Tensor, ...]
    is_freed: bool = False


class DependentCall:
    """The state that the nodes of a program's call share in a backward pass.

    The references to results are weak: a node that keeps its own result alive would never be freed.
    """

    def __init__(self, bridge: Any, node: Any) -> None:
        self.bridge, self.node = bridge, node
        self.split: SplitBackward = bridge.split
        self.results: list[ReferenceType[torch.Tensor]] = []
        self._visited_sources: list[tuple[tuple[int, ...], ReferenceType[SourceTensors]]] = []
        self._task = -1
        self._is_split = False

    def decide_split(self, anchor: Node) -> bool:
        """Return whether the current backward pass is split; the first dependent node of the pass decides this."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._visited_sources.clear()
            self._task = task
            self._is_split = may_take_gradients_of(anchor, self.results) or any(map(is_watched, self.results))
        return self._is_split

    @property
    def is_split(self) -> bool:
        """Whether a dependent node has decided to split the current backward pass."""
        return torch._C._current_graph_task_id() == self._task and self._is_split

    def add_sources(self, indices: tuple[int, ...], sources: SourceTensors) -> None:
        """Record the sources of a node that the backward pass has run."""
        self._visited_sources.append((indices, ref(sources)))

    def replacements(self) -> list[torch.Tensor | None]:
        """Return, for each source, a view of the tensor that a run node reads.

        None if no node that has run reads it.
        """
        tensors: dict[int, torch.Tensor] = {}
        for indices, reference in self._visited_sources:
            tensors |= zip(indices, sources.tensors if (sources := reference()) else (), strict=False)
        with torch.enable_grad():
            visited = map(tensors.get, self.bridge.signature.source_indices)
            return [None if tensor is None else tensor.view_as(tensor) for tensor in visited]

    def free_sources(self) -> None:
        """Free the sources of the nodes that the backward pass has run."""
        for _, reference in self._visited_sources:
            if (sources := reference()) is not None:
                sources.tensors = ()


def may_take_gradients_of(anchor: Node, results: Iterable[ReferenceType[torch.Tensor]]) -> bool:
    """Whether the current backward pass may compute gradients of requested tensors only, including one of `results`.

    The `anchor` is the node of a leaf that users cannot reach, so only a complete backward pass executes it. In other
    passes, the requested tensors are in the Python frame of `_engine_run_backward`. If the pass runs in one of
    autograd's own threads, this frame is not on the stack, and the function returns True.
    """
    try:
        if torch._C._will_engine_execute_node(anchor):
            return False
    except RuntimeError:  # PyTorch raises this for a leaf in a pass of torch.autograd.grad
        pass
    tensors = tensors_of_pass()
    if tensors is None:
        return True
    edges = [(result.grad_fn, result.output_nr) for reference in results if (result := reference()) is not None]
    return any(
        node is result_node and index == number
        for node, index in map(edge_of, tensors)
        for result_node, number in edges
    )


def edge_of(tensor: Any) -> tuple[Any, int]:
    """Return the autograd node of a tensor or edge, and the number of the tensor among the node's results."""
    is_tensor = isinstance(tensor, torch.Tensor)
    return (tensor.grad_fn if is_tensor else tensor.node), tensor.output_nr


def tensors_of_pass() -> Sequence[Any] | None:
    """Return the tensors whose gradients the current backward pass computes.

    None if `_engine_run_backward` is not on the stack of this thread.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not ENGINE_CODE:
        frame = frame.f_back
    args = () if frame is None else frame.f_locals.get("args", ())
    inputs = args[INPUTS_POSITION] if len(args) > INPUTS_POSITION else None
    return inputs if isinstance(inputs, tuple | list) else None


def is_watched(reference: ReferenceType[torch.Tensor]) -> bool:
    """Whether the result behind a weak reference has a hook or `retain_grad`, or its node has a hook.

    Raises `NotDifferentiable` for a hook on a view between the result and the memory that the program made.
    """
    tensor = reference()
    if tensor is None:
        return False
    if tensor.retains_grad or tensor._backward_hooks:
        return True
    nodes = nodes_of_views(tensor)
    if any(map(has_hooks, nodes[1:])):
        raise NotDifferentiable(
            "a hook is registered on a node of autograd's graph between a compiled program and its result, of shape "
            f"{list(tensor.shape)}: the hook would miss the gradient that comes back inside the program",
            fix="register the hook on the result itself, or register the hook in the compiled program",
        )
    return any(map(has_hooks, nodes))


def nodes_of_views(tensor: torch.Tensor) -> list[Any]:
    """Return the autograd nodes of the views that lead from the program's own tensor to a result, last view first."""
    nodes: list[Any] = []
    node: Any = tensor.grad_fn
    while node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction):
        nodes.append(node)
        node = node.next_functions[0][0] if node.next_functions else None
    return nodes


class DependentNode(torch.autograd.Function):
    """The node of a dependent result, which leads to the program's node and to the sources of the result."""

    @staticmethod
    def forward(
        ctx: Any,
        call: DependentCall,
        dependent: DependentResult,
        anchor: torch.Tensor,  # noqa: ARG004
        result: torch.Tensor,
        *sources: torch.Tensor,
    ) -> torch.Tensor:
        """Return a detached alias of the result, which shares its memory."""
        ctx.call, ctx.dependent, ctx.sources = call, dependent, SourceTensors(sources)
        ctx.set_materialize_grads(False)
        return result.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient for the program's node and, in a split pass, the gradients of the sources."""
        call, dependent, sources = ctx.call, ctx.dependent, ctx.sources
        source_gradients: Sequence[torch.Tensor | None] = [None] * len(dependent.sources)
        if gradient is None:
            return (None, None, None, None, *source_gradients)
        if sources.is_freed:
            raise RuntimeError(FREED_GRAPH_MESSAGE)
        sources.is_freed = not torch._C._autograd._get_current_graph_task_keep_graph()
        if call.decide_split(ctx.next_functions[0][0]):
            call.add_sources(dependent.sources, sources)
            source_gradients = call.bridge.source_gradients(call, dependent, gradient)
        elif sources.is_freed:
            sources.tensors = ()
        return (None, None, None, gradient, *source_gradients)


refuse_hooks(DependentNode)
ANCHOR = torch.empty(0, requires_grad=True)  # a leaf that every complete backward pass reaches


@dataclass(frozen=True, eq=False)
class DependentProgram:
    """The function that computes all results of a program, with a node for each dependent result.

    The `bridge` computes the results of the body, and `tail` makes their views.
    """

    bridge: Any
    tail: Callable[..., Any] | None
    _anchor: torch.Tensor = field(default=ANCHOR)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Return the results. Their nodes lead to each other in autograd's graph as in eager PyTorch."""
        bases = list(self.bridge(*inputs))
        outputs = self._outputs(inputs, bases)
        node: Any = next((base.grad_fn for base in bases if isinstance(base, torch.Tensor) and base.grad_fn), None)
        is_program_node = isinstance(node, Compiled._backward_cls)
        if not is_program_node:  # autograd is off, or records the operations because saved-tensor hooks are set
            return tuple(outputs)
        call = DependentCall(self.bridge, node)
        node.dependent_call = ref(call)
        signature = self.bridge.signature
        for dependent in signature.dependent:
            sources = [outputs[index] for index in dependent.sources]
            base = DependentNode.apply(call, dependent, self._anchor, bases[dependent.place], *sources)  # type: ignore[no-untyped-call]
            bases[dependent.place] = base
            new_outputs = self._outputs(inputs, bases)
            outputs = [new_outputs[i] if i in dependent.outputs else output for i, output in enumerate(outputs)]
        call.results = [ref(outputs[index]) for index in signature.source_indices]
        return tuple(outputs)

    def _outputs(self, inputs: Sequence[torch.Tensor], bases: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Return the outputs of the tail, or of the body if there is no tail."""
        if self.tail is None:
            return bases
        tail_arguments = (inputs[index] for index in self.bridge.signature.tail_inputs)
        outputs: Sequence[Any] = self.tail(*tail_arguments, *bases)
        return outputs
