"""The bridge to `torch.autograd`: a program with its own backward is one node in the caller's autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import ref

import torch

from thunder_core.backend.runtime.autograd_signature import (
    AutogradSignature,
    DependentResult,
    DimensionOrder,
    SeparateResults,
    Strides,
)
from thunder_core.backend.runtime.randomness import RandomState, drawing_from
from thunder_core.foundation.errors import NotDifferentiable
from thunder_core.passes.autodiff.applied.value_readers import read_values
from thunder_core.passes.autodiff.second_run import former_values, inputs_before_writes, reason_against_second_run
from thunder_core.tracing.capture.torch_facts.strides import dense_strides
from thunder_core.tracing.library.saved_tensors_hooks import are_users_hooks_set

Tensors = tuple[torch.Tensor, ...]
Gradients = Sequence[torch.Tensor | None]
Backward = Callable[[list[torch.Tensor]], Gradients]
FREED_GRAPH_MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)
MODIFIED_INPUT_MESSAGE = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: an input of the "
    "compiled program of shape {shape} is at version {found}; expected version {wanted} instead."
)


@dataclass(frozen=True, eq=False)
class Bridge:
    """A computation that autograd sees as one operation.

    `forward(*inputs)` returns the results, followed by the saved values. `backward(has_cotangent)` returns the backward
    for the results that are marked in `has_cotangent`. This backward takes a list of the saved values and of the
    gradients of these results, empties the list, and returns the gradients of the inputs. `backward` returns None if
    autograd has to record the computation instead. In that case, and for derivatives of the derivative,
    `recorded(*inputs)` computes the results by operations that autograd records.

    `split` is the `SplitBackward` of a program with dependent results. `readers` read the values outside of the program
    that the user's own backwards read. If such a value changes before the backward, autograd records the computation.
    `separate` returns the results that can have backward passes of their own. `separate` is None if it is unknown which
    results can.
    """

    signature: AutogradSignature
    forward: Callable[..., Tensors]
    backward: Callable[[tuple[bool, ...]], Backward | None]
    recorded: Callable[..., Tensors]
    split: Any = None
    readers: tuple[Callable[[], object], ...] = ()
    separate: Callable[[], SeparateResults] | None = None

    @cached_property
    def upstream_results(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The index of each result from which other results are computed, with the positions of these other results."""
        pairs = zip(self.signature.results, self.signature.downstream, strict=False)
        return tuple((index, downstream) for index, downstream in pairs if downstream)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """Return the results, which belong to one autograd node.

        If saved-tensor hooks are set, autograd records the operations of the program instead.
        """
        if are_users_hooks_set() and torch.is_grad_enabled():
            with self.mode():
                return self.recorded(*inputs)
        results: Tensors = Compiled.apply(self, None, *inputs)  # type: ignore[no-untyped-call]
        return results

    def gradients(self, run: Backward, saved: list[torch.Tensor], incoming: Gradients) -> Gradients:
        """Run a backward on the saved values and the incoming gradients.

        The backward empties the list `saved`, so that each value can be freed after its last use. Autocast is off, even
        if the caller has switched it on since the forward: the backward was derived for the dtypes of the forward.
        """
        pairs = zip(incoming, self.signature.layouts, strict=True)
        saved += [with_layout(gradient, layout) for gradient, layout in pairs if gradient is not None]
        del incoming, pairs
        with torch._C._DisableAutocast(), torch._C.DisableTorchFunctionSubclass():
            return run(saved)

    def mode(self) -> AbstractContextManager[Any]:
        """Return the context for running the program: without autocast if the program was decomposed under autocast."""
        return torch._C._DisableAutocast() if self.signature.beneath_autocast else nullcontext()

    def gradients_by_autograd(self, node: object, incoming: Gradients, call: object = None) -> Gradients:
        """Return the gradients of the inputs, computed by autograd, which records a second run of the program.

        If the grad mode is on, the gradients can be differentiated again. `call` is the `DependentCall` of a split
        backward pass, or None.
        """
        outputs, aliases = self._run_again(node, incoming, call)
        pairs = [
            (outputs[index], gradient)
            for index, gradient in zip(self.signature.results, incoming, strict=True)
            if gradient is not None
        ]
        results, gradients = zip(*pairs, strict=True)
        aliases_with_grad = [aliases[index] for index in self.signature.requires_grad_inputs]
        return self._by_autograd(results, aliases_with_grad, gradients)

    def _by_autograd(self, results: Sequence[torch.Tensor], differentiated: Any, gradients: Any) -> Gradients:
        create_graph = torch.is_grad_enabled()
        with torch._C._DisableAutocast():
            gradients_of_inputs: Gradients = torch.autograd.grad(
                results, differentiated, gradients, create_graph=create_graph, allow_unused=True
            )
        return gradients_of_inputs

    def source_gradients(self, call: Any, dependent: DependentResult, gradient: torch.Tensor) -> Gradients:
        """Return the gradients of the sources of a dependent result, computed from the `gradient` of the result."""
        node, position = call.node, self.signature.results.index(dependent.place)
        run = None if torch.is_grad_enabled() or are_vectorized([gradient]) else self.split.backward(dependent.place)
        incoming: list[torch.Tensor | None] = [None] * len(self.signature.results)
        incoming[position] = gradient
        if run is not None:
            return self.gradients(run, [*node.saved_tensors, *node.numbers], incoming)
        outputs, _ = self._run_again(node, incoming, call)
        sources = dict(zip(self.signature.source_indices, outputs[self.signature.count :], strict=True))
        source_outputs = [sources[index] for index in dependent.sources]
        return self._by_autograd([outputs[dependent.place]], source_outputs, [gradient])

    def _run_again(self, node: Any, incoming: Gradients, call: Any) -> tuple[Tensors, list[Any]]:
        """Run the program of a node again while autograd records it; return its results and the inputs that it read."""
        present = _require_unchanged(node.inputs, self._changed_inputs(node, received_by(incoming)))
        inputs = inputs_before_writes(self.signature, present, node.former)
        if inputs is None:
            raise self._refuse_second_run(node, incoming, reason_against_second_run(self.signature, present))
        with torch.enable_grad():
            aliases = [
                value.view_as(value) if isinstance(value, torch.Tensor) and value.requires_grad else value
                for value in inputs
            ]
        randomness = nullcontext() if node.state is None else drawing_from(node.state)
        with torch.enable_grad(), randomness, torch._C._DisableAutocast(), torch._C.DisableTorchFunctionSubclass():
            if call is None:
                return self.recorded(*aliases), aliases
            return self.split.recordable(*aliases, *call.replacements()), aliases

    def _changed_inputs(self, node: Any, received: Collection[int]) -> list[int]:
        """Return the indices of the inputs that were written to since the forward and affect the `received` results."""
        changed = [
            index
            for index, (value, version) in enumerate(node.inputs or ())
            if version is not None and version_of(value) != version
        ]
        if not changed or self.separate is None or node.chain is not None or node.dependent_call is not None:
            return changed
        needed = self.separate().inputs_of(received)
        return [index for index in changed if index in needed]

    def saved_values(self, node: Any, received: Collection[int]) -> list[Any] | None:
        """Return the saved values of a node for a backward pass with gradients of the `received` results.

        If an input was written to since the forward, the saved values are not available. Then this function raises
        PyTorch's error if a `received` result depends on the input, and returns None otherwise.
        """
        try:
            return [*node.saved_tensors, *node.numbers]
        except RuntimeError:
            if not _has_changed_input(node) or self._changed_inputs(node, received):
                raise
            return None

    def _refuse_second_run(self, node: Any, incoming: Gradients, why: str) -> NotDifferentiable:
        if node.values_read != read_values(self.readers):
            request = "a derivative after a change of a value that a backward of a torch.autograd.Function reads"
        elif torch.is_grad_enabled():
            request = "the derivative of a derivative"
        elif are_vectorized(incoming):
            request = "derivatives for many gradients at once"
        else:
            request = "a derivative for some of the results alone"
        return NotDifferentiable(
            f"{request} was requested for a program that writes to its inputs, and the program cannot be run again on "
            f"copies of these inputs: {why}",
            fix="compile the whole function that asks for derivatives, such as a training step with a gradient "
            "penalty, or leave the part that writes to the inputs out of the compiled program",
        )


class Compiled(torch.autograd.Function):
    """A program as an operation of autograd.

    If the node is the first node of a `chain`, its first input is the tensor of the next node, and the inputs that
    belong to later nodes are None.
    """

    @staticmethod
    def forward(ctx: Any, bridge: Bridge, chain: Any, *inputs: torch.Tensor) -> Tensors:
        """Run the forward, and save the values for the backward."""
        signature, ctx.chain = bridge.signature, chain
        inputs = inputs if chain is None else chain.take_inputs()
        ctx.state = RandomState.now() if signature.random else None
        ctx.former = former_values(signature, inputs)
        ctx.values_read = read_values(bridge.readers)
        with bridge.mode():
            outputs = bridge.forward(*inputs)
        results = outputs[: signature.count]
        ctx.watched = [(ref(results[index]), downstream) for index, downstream in bridge.upstream_results]
        ctx.dependent_call = ctx.remaining = None
        ctx.set_materialize_grads(False)
        saved = outputs[signature.count :]
        ctx.save_for_backward(*(to_savable(value) for value in saved if isinstance(value, torch.Tensor)))
        ctx.numbers = [value for value in saved if not isinstance(value, torch.Tensor)]
        rest = (result for index, result in enumerate(results) if index not in signature.results)
        ctx.mark_non_differentiable(*(result for result in rest if isinstance(result, torch.Tensor)))  # not numbers
        may_change = {index for index in signature.copied_inputs if not inputs[index].requires_grad}
        versions = (None if index in may_change else version_of(value) for index, value in enumerate(inputs))
        ctx.bridge, ctx.inputs = bridge, list(zip(inputs, versions, strict=True))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Run the backward for the results whose gradient is not None."""
        bridge: Bridge = ctx.bridge
        incoming = [gradients[index] for index in bridge.signature.results]
        input_gradients: list[torch.Tensor | None] = [None] * len(ctx.needs_input_grad)
        chain, offset = ctx.chain, 2 if ctx.chain is None else 3  # the arguments before the inputs
        if all(gradient is None for gradient in incoming):
            return tuple(input_gradients)
        received = received_by(incoming)
        if ctx.remaining is not None and not received <= ctx.remaining:
            raise RuntimeError(FREED_GRAPH_MESSAGE)
        _require_no_missed_hook(ctx.watched, incoming)
        call = split_call(ctx.dependent_call)
        is_changed = ctx.values_read != read_values(bridge.readers)
        by_autograd = is_changed or ctx.remaining is not None or torch.is_grad_enabled() or are_vectorized(incoming)
        backward = (chain or bridge).backward if call is None else bridge.split.backward
        run = None if by_autograd else backward(tuple(gradient is not None for gradient in incoming))
        saved = None if run is None else bridge.saved_values(ctx, received)
        if run is None or saved is None:
            outgoing = bridge.gradients_by_autograd(ctx, incoming, call)
            if not torch.is_grad_enabled():
                _free_saved(ctx, received)
        else:
            _free_saved(ctx, received)
            del gradients
            outgoing = bridge.gradients(run, saved, incoming)
        outgoing = outgoing if chain is None else chain.keep(ctx, outgoing)
        for index, gradient in zip(bridge.signature.requires_grad_inputs, outgoing, strict=True):
            input_gradients[index + offset] = gradient
        return tuple(input_gradients)


def split_call(reference: ref[Any] | None) -> Any:
    """Return the `DependentCall` behind a weak reference if the current backward pass is split; None otherwise."""
    call = None if reference is None else reference()
    return call if call is not None and call.is_split else None


def _require_no_missed_hook(watched: Iterable[tuple[ref[torch.Tensor], tuple[int, ...]]], incoming: Gradients) -> None:
    """Raise `NotDifferentiable` if a result has a hook that would miss a gradient.

    The hook does not see gradients from other results that the program computes from this result.
    """
    for reference, downstream in watched:
        result = reference()
        hooked = result is not None and (result.retains_grad or result._backward_hooks)
        if result is not None and hooked and any(incoming[position] is not None for position in downstream):
            raise NotDifferentiable(
                f"a result of the compiled program, of shape {list(result.shape)}, has "
                f"{'retain_grad()' if result.retains_grad else 'a hook'}, and the program computes another result from "
                "this one: the gradient of that path is not visible outside the program",
                fix="compile only the part that computes this result, and call the rest on it outside the program",
            )


def _free_saved(ctx: Any, received: set[int]) -> None:
    """Free the saved values of a node after a backward pass for the results at the positions `received`.

    Nothing is freed if the graph is retained. The inputs are not freed if other results may have a later backward pass.
    """
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        if ctx.dependent_call is not None and (call := ctx.dependent_call()) is not None:
            call.free_sources()
        ctx.maybe_clear_saved_tensors()
        former_remaining: frozenset[int] | None = ctx.remaining
        ctx.remaining = frozenset[int]()
        is_partial = len(received) < len(ctx.bridge.signature.results)
        if is_partial and ctx.bridge.separate is not None and ctx.chain is None and ctx.dependent_call is None:
            ctx.remaining = ctx.bridge.separate().after(received, former_remaining)
        if not ctx.remaining:
            ctx.inputs = ctx.former = None


def received_by(incoming: Gradients) -> set[int]:
    """Return the positions of the results that have a gradient."""
    return {position for position, gradient in enumerate(incoming) if gradient is not None}


def _has_changed_input(node: Any) -> bool:
    """Whether an input of a node was written to since the forward."""
    return any(version is not None and version_of(value) != version for value, version in node.inputs or ())


def _require_unchanged(
    inputs: Sequence[tuple[torch.Tensor, int | None]] | None, changed: Sequence[int]
) -> list[torch.Tensor]:
    """Return the inputs of a program; raise PyTorch's own error if `changed` names any, or if the inputs are freed."""
    if inputs is None:
        raise RuntimeError(FREED_GRAPH_MESSAGE)
    for index in changed:
        tensor, version = inputs[index]
        raise RuntimeError(
            MODIFIED_INPUT_MESSAGE.format(shape=list(tensor.shape), found=tensor._version, wanted=version)
        )
    return [tensor for tensor, _ in inputs]


def version_of(value: object) -> int:
    """Return the number of writes to an input; 0 for a number, and for a tensor made in inference mode.

    PyTorch does not count the writes to a tensor made in inference mode, and autograd does not save it.
    """
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def connect_tail(bridge: Bridge, tail: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a function that computes all results of a program: the bridge's operation, and then the tail's views."""
    if tail is None:
        return bridge

    def run(*inputs: torch.Tensor) -> Any:
        return tail(*(inputs[index] for index in bridge.signature.tail_inputs), *bridge(*inputs))

    return run


def to_savable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that autograd can save: an alias of a view, and a copy of a tensor made in inference mode.

    If a node saved a view of its own result, the view, the result and the node would be a cycle of C++ objects, which
    Python never collects. An alias has no base, so there is no cycle. Autograd still notices writes to its memory.

    Autograd refuses to save a tensor that was made in inference mode. A compiled backward may read such an input even
    if eager PyTorch does not save the input.
    """
    if tensor.is_inference():
        return tensor.clone()
    return tensor if tensor._base is None else tensor.detach()


def are_vectorized(gradients: Gradients) -> bool:
    """Whether gradients are batched (`is_grads_batched`, `vectorize=True`), which kernels cannot handle."""
    functorch = torch._C._functorch
    present = [gradient for gradient in gradients if gradient is not None]
    return any(
        functorch.is_legacy_batchedtensor(item) or functorch.is_functorch_wrapped_tensor(item) for item in present
    )


def strides_for(layout: Strides | DimensionOrder, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor of this shape in a layout."""
    return layout.strides if isinstance(layout, Strides) else dense_strides(shape, layout.dimensions)


def with_layout(gradient: torch.Tensor, layout: Strides | DimensionOrder) -> torch.Tensor:
    """Return a gradient in a memory layout and without lazy conjugate or negative bits, copying it if needed."""
    stride = strides_for(layout, gradient.shape)
    if gradient.stride() == stride and not (gradient.is_neg() or gradient.is_conj()):
        return gradient
    return torch.empty_strided(gradient.shape, stride, dtype=gradient.dtype, device=gradient.device).copy_(gradient)


def refuse_hook(node: object, hook: object) -> Any:
    """Raise `NotDifferentiable` for a hook at a program's node, which would get the gradients of all inputs."""
    raise NotDifferentiable(
        "a hook is registered on the `grad_fn` of a compiled program's result; this node represents the whole program, "
        "so the hook would get other gradients than in eager PyTorch",
        fix="register a hook on the result itself, or register the hook in the compiled program",
    )


def register_prehook(node: Any, hook: Any) -> Any:
    """Register a hook for the gradients of a program's results if there is only one result, as in eager PyTorch."""
    if len(node.bridge.signature.results) > 1:
        refuse_hook(node, hook)
    return torch._C._FunctionBase.register_prehook(node, hook)


def refuse_hooks(kind: Any, register_prehook: Callable[[Any, Any], Any] | None = None) -> None:
    """Refuse hooks at the nodes of an operation of Thunder if they would get other gradients than in eager PyTorch."""
    kind._backward_cls.register_hook = refuse_hook
    if register_prehook is not None:
        kind._backward_cls.register_prehook = register_prehook


refuse_hooks(Compiled, register_prehook)
