"""The forward of a user's `torch.autograd.Function` in a program, whose results lead to the function's own backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from thunder_core.passes.autodiff.applied.object_copies import Snapshot
from thunder_core.passes.autodiff.rules import register_live

# The kind of a result: the tensor itself gets the autograd node, a view of the tensor gets the node, or the result
# needs no gradient. The tensor itself gets the node if it is an input that the forward has written to and marked as
# dirty.
ITSELF, VIEW, CONSTANT = "itself", "view", "constant"


@dataclass(frozen=True, eq=False)
class ForwardResults:
    """The tensors among the `count` outputs of a forward.

    `kind_of` maps the index of each tensor to its kind: `ITSELF`, `VIEW` or `CONSTANT`.
    """

    count: int
    kind_of: dict[int, str]

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of the tensors among the outputs."""
        return tuple(self.kind_of)

    def of_kind(self, tensors: Sequence[Any], kind: str) -> tuple[Any, ...]:
        """Return the tensors of one kind."""
        pairs = zip(tensors, self.kind_of.values(), strict=True)
        return tuple(tensor for tensor, kind_of_tensor in pairs if kind_of_tensor == kind)

    def connect(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Return the tensors, with a view in place of each tensor whose kind is not `ITSELF`."""
        pairs = zip(tensors, self.kind_of.values(), strict=True)
        return tuple(tensor if kind == ITSELF else tensor.view_as(tensor) for tensor, kind in pairs)

    def of_outputs(self, gradients: tuple[Any, ...]) -> list[Any]:
        """Return one entry for each output: its gradient, or None.

        `gradients` has the gradients of the tensors only.
        """
        by_index = dict(zip(self.indices, gradients, strict=True))
        return [by_index.get(index) for index in range(self.count)]


@cache
def connecting_operation(kind: Any) -> Callable[..., Any]:
    """Return an operation that makes results part of autograd's graph, with the function's own backward.

    The operation takes the inputs of the function, the results of its forward, and the values that the forward stored
    in its `ctx`. The operation returns each result as the tensor itself, or as a view of the tensor.
    """

    class Connected(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, *arguments: Any) -> Any:
            *tensors, kept = arguments
            return _join_graph(ctx, tensors, *kept)

        @staticmethod
        def backward(ctx: object, *gradients: Any) -> Any:
            return _gradients(kind, ctx, gradients)

    def connect(
        inputs: tuple[Any, ...],
        tensors: tuple[Any, ...],
        results: ForwardResults,
        saved: tuple[Any, ...],
        attributes: Snapshot,
        values: tuple[Any, ...],
        materializes: bool,
    ) -> Any:
        description = (len(inputs), results, saved, attributes.fill(values)[0], materializes)
        return Connected.apply(*inputs, *tensors, description)  # type: ignore[no-untyped-call]

    Connected.__name__ = Connected.__qualname__ = kind.__name__
    return register_live(f"{kind.__module__}.{kind.__qualname__.replace('<locals>.', '')}.connect", connect)


def _join_graph(
    ctx: Any,
    tensors: Sequence[Any],
    count: int,
    results: ForwardResults,
    saved: tuple[Any, ...],
    attributes: dict[str, Any],
    materializes: bool,
) -> tuple[Any, ...]:
    """Return the results of a forward, and store in `ctx` the values that its backward reads.

    The first `count` of the `tensors` are the inputs of the function; the others are its results.
    """
    for name, value in attributes.items():
        setattr(ctx, name, value)
    ctx.connected = (count, results)
    ctx.save_for_backward(*saved)
    ctx.set_materialize_grads(materializes)
    for tensor in (written := results.of_kind(tensors[count:], ITSELF)):
        # a write to no element, which connects the tensor with autograd's graph
        tensor.as_strided((0,), (1,)).zero_()
    ctx.mark_dirty(*written)
    outputs = results.connect(tensors[count:])
    ctx.mark_non_differentiable(*results.of_kind(outputs, CONSTANT))
    return outputs


def _gradients(kind: Any, ctx: Any, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the gradients of the inputs by the backward of a function, and None for the other arguments."""
    count, results = ctx.connected
    ctx.needs_input_grad = ctx.needs_input_grad[:count]
    has_own_vjp = kind.vjp is not torch.autograd.Function.vjp
    input_gradients = (kind.vjp if has_own_vjp else kind.backward)(ctx, *results.of_outputs(gradients))
    input_gradients = input_gradients if isinstance(input_gradients, tuple) else (input_gradients,)
    return (*input_gradients[:count], *(None for _ in range(len(gradients) + 1)))
