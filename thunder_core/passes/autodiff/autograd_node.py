"""The bridge to `torch.autograd`: a program with a backward of its own is one node in the graph of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    Strides,
)
from thunder_core.backend.runtime.randomness import RandomState, drawing_from
from thunder_core.foundation.errors import NotDifferentiable
from thunder_core.tracing.capture.torch_facts.strides import dense_strides
from thunder_core.tracing.library.saved_tensors_hooks import are_users_hooks_set

Tensors = tuple[torch.Tensor, ...]
Gradients = Sequence[torch.Tensor | None]
Backward = Callable[[list[torch.Tensor]], Gradients]
GONE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Specify retain_graph=True if you need to backward through the graph a second time."
)
CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: an input of the "
    "compiled program of shape {shape} is at version {found}; expected version {wanted} instead."
)


@dataclass(frozen=True, eq=False)
class Bridge:
    """A computation that autograd sees as one operation.

    `forward(*inputs)` returns the results and then what is saved. `backward(given)` is what runs where gradients are
    given for some results: it takes a list of what was saved and of these gradients, and empties it; None where it has
    to be left to autograd. `recorded(*inputs)` computes the results by operations that autograd records, for that and
    for derivatives of the derivative. `split` is the `SplitBackward` of a program with dependent results.
    """

    signature: AutogradSignature
    forward: Callable[..., Tensors]
    backward: Callable[[tuple[bool, ...]], Backward | None]
    recorded: Callable[..., Tensors]
    split: Any = None

    @cached_property
    def upstream_results(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The place of each result that other results are computed from, with the positions of these."""
        pairs = zip(self.signature.results, self.signature.downstream, strict=False)
        return tuple((place, downstream) for place, downstream in pairs if downstream)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """The results, as one node of autograd's graph; autograd packs what it saves of the operations themselves."""
        if are_users_hooks_set() and torch.is_grad_enabled():
            with self.mode():
                return self.recorded(*inputs)
        results: Tensors = Compiled.apply(self, *inputs)  # type: ignore[no-untyped-call]
        return results

    def gradients(self, run: Backward, saved: list[torch.Tensor], incoming: Gradients) -> Gradients:
        """Run a backward; the list is emptied, so that what was saved can go as soon as it was read last."""
        pairs = zip(incoming, self.signature.layouts, strict=True)
        saved += [with_layout(gradient, layout) for gradient, layout in pairs if gradient is not None]
        del incoming, pairs
        with self.mode(), torch._C.DisableTorchFunctionSubclass():
            return run(saved)

    def mode(self) -> AbstractContextManager[Any]:
        """The context that all parts run under."""
        return torch._C._DisableAutocast() if self.signature.beneath_autocast else nullcontext()

    def gradients_by_autograd(
        self, inputs: Sequence[torch.Tensor], state: RandomState | None, incoming: Gradients, call: Any = None
    ) -> Gradients:
        """The gradients as functions of the inputs: the program is run once more, and autograd records it.

        With a `DependentCall`, they are those of a backward pass that is split.
        """
        outputs, aliases = self._once_more(inputs, state, incoming, call)
        pairs = [
            (outputs[place], one)
            for place, one in zip(self.signature.results, incoming, strict=True)
            if one is not None
        ]
        results, gradients = zip(*pairs, strict=True)
        wanted = [aliases[place] for place in self.signature.requires_grad_inputs]
        return self._by_autograd(results, wanted, gradients)

    def _by_autograd(self, results: Sequence[torch.Tensor], wanted: Any, gradients: Any) -> Gradients:
        create_graph = torch.is_grad_enabled()
        with self.mode():
            found: Gradients = torch.autograd.grad(
                results, wanted, gradients, create_graph=create_graph, allow_unused=True
            )
        return found

    def source_gradients(self, call: Any, dependent: DependentResult, gradient: torch.Tensor) -> Gradients:
        """The gradients of the sources of a dependent result, for the gradient of the result."""
        node, position = call.node, self.signature.results.index(dependent.place)
        run = None if torch.is_grad_enabled() or are_vectorized([gradient]) else self.split.backward(dependent.place)
        incoming: list[torch.Tensor | None] = [None] * len(self.signature.results)
        incoming[position] = gradient
        if run is not None:
            return self.gradients(run, [*node.saved_tensors, *node.numbers], incoming)
        outputs, _ = self._once_more(_unchanged(node.inputs), node.state, incoming, call)
        sources = dict(zip(self.signature.source_places, outputs[self.signature.count :], strict=True))
        wanted = [sources[place] for place in dependent.sources]
        return self._by_autograd([outputs[dependent.place]], wanted, [gradient])

    def _once_more(
        self, inputs: Sequence[torch.Tensor], state: RandomState | None, incoming: Gradients, call: Any
    ) -> tuple[Tensors, list[Any]]:
        """Run the program once more while autograd records it; return its results and the inputs that it ran on."""
        create_graph = torch.is_grad_enabled()
        if self.signature.writes:
            some = (
                "derivatives for many gradients at once"
                if are_vectorized(incoming)
                else "a derivative for some of the results alone"
            )
            asked = "the derivative of a derivative" if create_graph else some
            raise NotDifferentiable(
                f"{asked} was requested for a program that writes to its inputs, so the program cannot be run again",
                fix="leave the part that writes to the inputs out of the compiled program",
            )
        with torch.enable_grad():
            aliases = [
                one.view_as(one) if isinstance(one, torch.Tensor) and one.requires_grad else one for one in inputs
            ]
        randomness = nullcontext() if state is None else drawing_from(state)
        with torch.enable_grad(), randomness, self.mode(), torch._C.DisableTorchFunctionSubclass():
            if call is None:
                return self.recorded(*aliases), aliases
            return self.split.recorded(*aliases, *call.replacements()), aliases


class Compiled(torch.autograd.Function):
    """A program as an operation of autograd."""

    @staticmethod
    def forward(ctx: Any, bridge: Bridge, *inputs: torch.Tensor) -> Tensors:
        """Run the forward, of which autograd records nothing."""
        signature = bridge.signature
        ctx.state = RandomState.now() if signature.random else None
        with bridge.mode():
            outputs = bridge.forward(*inputs)
        results = outputs[: signature.count]
        ctx.watched = [(ref(results[place]), downstream) for place, downstream in bridge.upstream_results]
        ctx.dependent_call = None
        ctx.set_materialize_grads(False)
        kept = outputs[signature.count :]
        ctx.save_for_backward(*(savable(one) for one in kept if isinstance(one, torch.Tensor)))
        ctx.numbers = [one for one in kept if not isinstance(one, torch.Tensor)]
        ctx.mark_non_differentiable(*(one for place, one in enumerate(results) if place not in signature.results))
        ctx.bridge, ctx.inputs = bridge, [(value, version_of(value)) for value in inputs]
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Run the backward for the gradients that there are."""
        bridge: Bridge = ctx.bridge
        incoming = [gradients[place] for place in bridge.signature.results]
        places: list[torch.Tensor | None] = [None] * len(ctx.needs_input_grad)
        if all(one is None for one in incoming):
            return tuple(places)
        _require_seen(ctx.watched, incoming)
        call = split_call(ctx.dependent_call)
        by_autograd = torch.is_grad_enabled() or are_vectorized(incoming)
        backward = bridge.backward if call is None else bridge.split.backward
        run = None if by_autograd else backward(tuple(one is not None for one in incoming))
        if run is None:
            outgoing = bridge.gradients_by_autograd(_unchanged(ctx.inputs), ctx.state, incoming, call)
            if not torch.is_grad_enabled():
                _let_go(ctx)
        else:
            saved = [*ctx.saved_tensors, *ctx.numbers]
            _let_go(ctx)
            del gradients
            outgoing = bridge.gradients(run, saved, incoming)
        for place, one in zip(bridge.signature.requires_grad_inputs, outgoing, strict=True):
            places[place + 1] = one
        return tuple(places)


def split_call(reference: ref[Any] | None) -> Any:
    """The call of a program with dependent results, where the present backward pass through the call is split."""
    call = None if reference is None else reference()
    return call if call is not None and call.is_split() else None


def _require_seen(watched: Iterable[tuple[ref[torch.Tensor], tuple[int, ...]]], incoming: Gradients) -> None:
    """Raise `NotDifferentiable` where a hook of a result would miss gradient that comes to it inside the program."""
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


def _let_go(ctx: Any) -> None:
    """Forget what was saved, unless the graph is to be kept."""
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        if ctx.dependent_call is not None and (call := ctx.dependent_call()) is not None:
            call.free_sources()
        ctx.maybe_clear_saved_tensors()
        ctx.inputs = None


def _unchanged(inputs: Sequence[tuple[torch.Tensor, int]] | None) -> list[torch.Tensor]:
    """The inputs of a program, if they are what they were; PyTorch's own errors otherwise."""
    if inputs is None:
        raise RuntimeError(GONE)
    for tensor, version in inputs:
        if version_of(tensor) != version:
            raise RuntimeError(CHANGED.format(shape=list(tensor.shape), found=tensor._version, wanted=version))
    return [tensor for tensor, _ in inputs]


def version_of(value: Any) -> int:
    """Return the number of writes to an input; 0 for a number, and for a tensor that inference mode made.

    PyTorch does not count the writes to such a tensor, and autograd does not save it.
    """
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def connected(bridge: Bridge, tail: Callable[..., Any] | None) -> Callable[..., Any]:
    """The function that computes all results of a program: as one operation of autograd, and behind it its views."""
    if tail is None:
        return bridge

    def run(*inputs: torch.Tensor) -> Any:
        return tail(*(inputs[place] for place in bridge.signature.tail_inputs), *bridge(*inputs))

    return run


def savable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that autograd can save: one with the same memory and no base, or a copy of an inference tensor.

    A view of a result holds that result, which holds the node of autograd's graph that holds the view. Python never
    collects such a cycle of C++ objects. Without the base, autograd still notices writes to the memory. Autograd does
    not save a tensor that inference mode made: a compiled backward may read an input that eager recomputes or copies.
    """
    if tensor.is_inference():
        return tensor.clone()
    return tensor if tensor._base is None else tensor.detach()


def are_vectorized(gradients: Gradients) -> bool:
    """Whether gradients stand for many each (`is_grads_batched`, `vectorize=True`), which no kernel can take."""
    functorch = torch._C._functorch
    present = [one for one in gradients if one is not None]
    return any(functorch.is_legacy_batchedtensor(one) or functorch.is_functorch_wrapped_tensor(one) for one in present)


def strides_for(layout: Strides | DimensionOrder, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor of this shape in a layout."""
    return layout.strides if isinstance(layout, Strides) else dense_strides(shape, layout.dimensions)


def with_layout(gradient: torch.Tensor, layout: Strides | DimensionOrder) -> torch.Tensor:
    """A gradient that lies in memory in a layout, and whose memory holds its values: itself, or a copy."""
    stride = strides_for(layout, gradient.shape)
    if gradient.stride() == stride and not (gradient.is_neg() or gradient.is_conj()):
        return gradient
    return torch.empty_strided(gradient.shape, stride, dtype=gradient.dtype, device=gradient.device).copy_(gradient)


def refuse_hook(node: Any, hook: Any) -> Any:
    """Refuse a hook at the node of a program, which would get the gradients of all that the program reads."""
    raise NotDifferentiable(
        "a hook is registered on the `grad_fn` of a compiled program's result; this node represents the whole program, "
        "so the hook would get other gradients than in eager PyTorch",
        fix="register a hook on the result itself, or register the hook in the compiled program",
    )


def register_prehook(node: Any, hook: Any) -> Any:
    """Register a hook that gets the gradients of a program's results, if there is one result, as in eager PyTorch."""
    if len(node.bridge.signature.results) > 1:
        refuse_hook(node, hook)
    return torch._C._FunctionBase.register_prehook(node, hook)


def refuse_hooks(kind: Any, register_prehook: Callable[[Any, Any], Any] | None = None) -> None:
    """Refuse hooks at the nodes of an operation of ours, as far as they would get other gradients than eager's."""
    kind._backward_cls.register_hook = refuse_hook
    if register_prehook is not None:
        kind._backward_cls.register_prehook = register_prehook


refuse_hooks(Compiled, register_prehook)
