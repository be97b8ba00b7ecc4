"""The autograd graph of fakes: its nodes, the nodes that a backward pass executes, and the leaves that it reaches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.autograd.graph import GradientEdge

Node = Any
# Nodes whose backward raises an error if the loss depends on the phase of complex eigenvectors, which are the second
# result. PyTorch skips this check, which reads values, for tensors without data.
PHASE_CHECKS = ("LinalgEigBackward0", "LinalgEighBackward0")


def memory_of(fake: torch.Tensor) -> int:
    """Return the identity of a tensor's storage, which it shares with its views."""
    if fake.layout is not torch.strided:  # sparse tensors have no storage
        return id(fake)
    return int(fake.untyped_storage()._cdata)


def has_own_memory(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether an operation's outputs share no memory with its inputs and with each other."""
    if any(tensor.layout is not torch.strided for tensor in (*outputs, *inputs)):
        return False
    memories = {memory_of(tensor) for tensor in outputs}
    return len(memories) == len(outputs) and memories.isdisjoint(map(memory_of, inputs))


def graph_of(roots: Sequence[torch.Tensor]) -> list[Node]:
    """Return all autograd nodes of some tensors, including the accumulation nodes of leaves."""
    nodes: dict[int, Node] = {}
    waiting = [root.grad_fn for root in roots]
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in nodes:
            nodes[id(node)] = node
            waiting += [following for following, _ in node.next_functions]
    return list(nodes.values())


def leaves_of(roots: Sequence[torch.Tensor], graph: Sequence[Node]) -> list[torch.Tensor]:
    """Return the leaves that a backward pass from the roots reaches, without duplicates."""
    leaves = [root for root in roots if root.requires_grad and root.grad_fn is None]
    leaves += [node.variable for node in graph if hasattr(node, "variable")]
    return list({id(leaf): leaf for leaf in leaves}.values())


def executed_nodes(graph: Sequence[Node], inputs: Sequence[torch.Tensor | GradientEdge]) -> list[Node]:
    """Return the nodes that a backward pass to these tensors and edges executes."""
    before: dict[int, list[Node]] = {}
    for node in graph:
        for following, _ in node.next_functions:
            before.setdefault(id(following), []).append(node)
    leaves = {id(tensor) for tensor in inputs}
    nodes_of_inputs = [value.node if isinstance(value, GradientEdge) else value.grad_fn for value in inputs]
    ends = {id(node) for node in nodes_of_inputs if node is not None}
    waiting = [node for node in graph if id(node) in ends or id(getattr(node, "variable", None)) in leaves]
    nodes: dict[int, Node] = {}
    while waiting:
        for node in before.get(id(waiting.pop()), ()):
            if id(node) not in nodes:
                nodes[id(node)] = node
                waiting.append(node)
    return list(nodes.values())


def shared_memory(grads: Sequence[torch.Tensor | None], held_addresses: Collection[int]) -> set[int]:
    """Return the memory of gradients that is in `held_addresses`, or that several gradients share."""
    addresses = [memory_of(grad) for grad in grads if grad is not None]
    return {index for index in addresses if index in held_addresses or addresses.count(index) > 1}


def has_layout_of(grad: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Whether a gradient has the layout that the engine requires: the strides of its leaf, or contiguous strides."""
    if is_non_overlapping_and_dense_or_false(leaf):
        return all(size == 1 or a == b for size, a, b in zip(leaf.shape, grad.stride(), leaf.stride(), strict=True))
    return grad.is_contiguous()


def copy_gradient(grad: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Return a copy of a gradient with the layout that the engine requires."""
    if leaf.is_contiguous() or not is_non_overlapping_and_dense_or_false(leaf):
        return grad.clone(memory_format=torch.contiguous_format)
    return grad.new_empty_strided(leaf.shape, leaf.stride()).copy_(grad)


@contextmanager
def skipped_checks_refused(nodes: Iterable[Node]) -> Iterator[None]:
    """Raise `DataDependentOutputException` in the block where a backward skips a check of values on fakes."""
    with ExitStack() as stack:
        for node in nodes:
            if node.name() in PHASE_CHECKS:
                stack.callback(node.register_prehook(_refuse_gradient_of_phases).remove)
        yield


def _refuse_gradient_of_phases(gradients: Sequence[torch.Tensor | None]) -> None:
    eigenvectors = gradients[1]
    if eigenvectors is not None and eigenvectors.is_complex():
        raise DataDependentOutputException(torch.ops.aten.allclose.default)
