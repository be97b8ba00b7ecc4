"""A program as several autograd nodes in a row, so that gradients reach the parameters while the backward still runs.

`DistributedDataParallel` reduces a bucket of gradients as soon as autograd has accumulated them. Inside such a wrapper,
the backward of a program is therefore divided among a chain of nodes: each node runs a piece of the backward, and
returns the gradients of one group of inputs. The first node is the node of the program. Each node leads to the next
node. Autograd accumulates the gradients of a node before it runs the next node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from thunder_core.backend.parallel.backward_pieces import Groups
from thunder_core.backend.parallel.buckets import MEBIBYTE, BucketSizes
from thunder_core.passes.autodiff.autograd_node import Backward, Bridge, Compiled, Gradients, Tensors, refuse_hooks
from thunder_core.tracing.library.saved_tensors_hooks import are_users_hooks_set


class BackwardPieces(Protocol):
    """An object that cuts the backward of a program into pieces."""

    def groups(self, buckets: BucketSizes) -> Groups:
        """Return the groups of gradients, one for each piece. A backward that is not cut has at most one group."""

    def functions(self, has_cotangent: tuple[bool, ...], groups: Groups) -> Sequence[Backward] | None:
        """Return a function for each group; None if the backward for these cotangents is not cut."""


@dataclass(frozen=True, eq=False)
class ChainedBridge(Bridge):
    """A computation that autograd sees as one operation, or as a chain if gradients are reduced in buckets."""

    pieces: BackwardPieces = field(kw_only=True)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """Return the results; inside DistributedDataParallel, the backward is a chain of nodes."""
        wrapper = DistributedDataParallel._active_ddp_module
        if wrapper is None or not torch.is_grad_enabled() or are_users_hooks_set():
            return super().__call__(*inputs)
        groups = self.pieces.groups(bucket_sizes_of(wrapper))
        return super().__call__(*inputs) if len(groups) < 2 else self._in_chain(groups, inputs)

    def _in_chain(self, groups: Groups, inputs: Sequence[torch.Tensor]) -> Tensors:
        """Return the program's results from a chain of nodes. The last node of the chain is made first."""
        chain = Chain(self, groups, list(inputs))
        indices = [[self.signature.requires_grad_inputs[position] for position in group] for group in groups]
        following: Any = None
        for number in reversed(range(1, len(groups))):
            members = [inputs[index] for index in indices[number]]
            following = PieceNode.apply(chain, number, following, *members)  # type: ignore[no-untyped-call]
        later = {index for group in indices[1:] for index in group}
        own = (None if index in later else value for index, value in enumerate(inputs))
        results: Tensors = Compiled.apply(self, chain, following, *own)  # type: ignore[no-untyped-call]
        return results


def bucket_sizes_of(wrapper: DistributedDataParallel) -> BucketSizes:
    """Return the sizes of the buckets of a wrapper."""
    most = float(wrapper.bucket_bytes_cap)
    return BucketSizes(min(MEBIBYTE, most) if wrapper.bucket_bytes_cap_default else most, most)


@dataclass
class RemainingPieces:
    """The part of a backward pass that later nodes of a chain run.

    If the backward is cut, `values` are the arguments of the next of the `functions`. Otherwise, `gradients` are the
    gradients of all inputs.
    """

    values: list[Any] = field(default_factory=list)
    functions: Sequence[Backward] = ()
    gradients: list[torch.Tensor | None] | None = None


@dataclass(eq=False)
class Chain:
    """The state that the nodes of a call share. `inputs` are the program's inputs; the forward removes them.

    In a backward pass, each node stores the remaining pieces and their inputs for the next node (`RemainingPieces`), by
    the number of the pass.
    """

    bridge: ChainedBridge
    groups: Groups
    inputs: list[Any]
    _remaining: dict[int, RemainingPieces] = field(default_factory=dict)

    def take_inputs(self) -> list[Any]:
        """Return the inputs of the program, and remove them from the chain."""
        inputs, self.inputs = self.inputs, []
        return inputs

    def backward(self, has_cotangent: tuple[bool, ...]) -> Backward | None:
        """Return the function that runs the first piece, or the whole backward if the backward is not cut."""
        functions = self.bridge.pieces.functions(has_cotangent, self.groups)
        if functions is None:
            return self.bridge.backward(has_cotangent)

        def run(values: list[Any]) -> Gradients:
            return self._run_piece(0, RemainingPieces(values, functions))

        return run

    def keep(self, node: object, gradients: Gradients) -> Gradients:
        """Return the gradients of the first group, with None for other inputs; store the others for the next nodes."""
        task = torch._C._current_graph_task_id()
        others = list(gradients)
        first: list[torch.Tensor | None] = [None] * len(others)
        for position in self.groups[0]:
            first[position], others[position] = others[position], None
        self._remaining.setdefault(task, RemainingPieces(gradients=others))
        self._drop_unused_rest(node, task)
        return first

    def gradients_of(self, node: object, number: int) -> Gradients:
        """Return the gradients of a group, for the node of the group."""
        task = torch._C._current_graph_task_id()
        rest = self._remaining.pop(task, None)
        if rest is None:  # no result of the program has received a gradient
            return [None] * len(self.groups[number])
        if rest.gradients is None:
            with torch._C._DisableAutocast(), torch._C.DisableTorchFunctionSubclass():
                gradients = self._run_piece(number, rest)
        else:
            self._remaining[task], gradients = rest, rest.gradients
        gradients_of_group = [gradients[position] for position in self.groups[number]]
        for position in self.groups[number]:
            gradients[position] = None  # autograd may then take the memory of the gradient
        self._drop_unused_rest(node, task)
        return gradients_of_group

    def _drop_unused_rest(self, node: Any, task: int) -> None:
        """Delete the stored values of a backward pass if the pass does not run the next node of the chain."""
        following: Any = node.next_functions[0][0] if node.next_functions else None
        is_chained = isinstance(following, PieceNode._backward_cls)
        if not (is_chained and torch._C._will_engine_execute_node(following)):
            self._remaining.pop(task, None)

    def _run_piece(self, number: int, rest: RemainingPieces) -> list[torch.Tensor | None]:
        """Run a piece, store the values for the next piece, and return the gradients: None outside of the piece."""
        group = self.groups[number]
        outputs = rest.functions[number](rest.values)
        gradients: list[Any] = [None] * sum(map(len, self.groups))
        for position, gradient in zip(group, outputs, strict=False):
            gradients[position] = gradient
        if number + 1 < len(self.groups):
            self._remaining[torch._C._current_graph_task_id()] = RemainingPieces(
                list(outputs[len(group) :]), rest.functions
            )
        return gradients


class PieceNode(torch.autograd.Function):
    """A node that runs a piece of a program's backward, and returns the gradients of a group of inputs."""

    @staticmethod
    def forward(ctx: Any, chain: Chain, number: int, following: object, *inputs: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Return an empty tensor that connects the previous node of the chain with this node."""
        ctx.chain, ctx.number = chain, number
        ctx.set_materialize_grads(False)
        return torch.empty(0, device=inputs[0].device)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the group."""
        return (None, None, None, *ctx.chain.gradients_of(ctx, ctx.number))


refuse_hooks(PieceNode)
