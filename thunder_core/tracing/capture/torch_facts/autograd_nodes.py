"""Nodes of autograd's graph: nodes where tracing stops, and paths from a fake tensor to a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _disable_current_modes


class _Opaque(torch.autograd.Function):
    """An in-place identity that gives a fake a `grad_fn`. Its backward never runs, and its result may be written to."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        ctx.mark_dirty(fake)
        return fake

    @staticmethod
    def backward(ctx: object, *gradients: Any) -> Any:
        raise NotImplementedError("no gradients are computed while tracing")


class _FromOutside(_Opaque):
    """The node of a tensor that was made before the program ran."""


class _FromCall(_Opaque):
    """The node of a tensor that a called compiled function made."""


class _FromValues(_Opaque):
    """The node of a tensor that an operation made of the values of its arguments, because it needs the values."""


FROM_OUTSIDE: type = _FromOutside._backward_cls
FROM_CALL: type = _FromCall._backward_cls
FROM_VALUES: type = _FromValues._backward_cls
Steps = tuple[int, ...]  # a path between two nodes: a position in `next_functions` at each node


def tracked_from_outside(fake: torch.Tensor) -> torch.Tensor:
    """Make a fake the result of an autograd node that existed before the program ran, and return the fake."""
    return _result_of(_FromOutside, fake)


def tracked_from_call(fake: torch.Tensor) -> torch.Tensor:
    """Make a fake the result of a compiled function that the program calls, and return the fake."""
    return _result_outside_levels(_FromCall, fake)


def tracked_from_values(fake: torch.Tensor, name: str) -> torch.Tensor:
    """Make a fake the result of an operation that ran on values, and return the fake; `name` is its node's name."""
    return _result_outside_levels(_from_values_named(name), fake)


@lru_cache
def _from_values_named(name: str) -> type[_FromValues]:
    """Return a class of nodes that have the name of PyTorch's node, which programs read and print."""
    kind: Any = type(name, (_FromValues,), {})
    kind._backward_cls = type(name, (FROM_VALUES,), {"_forward_cls": kind})
    named: type[_FromValues] = kind
    return named


def _result_outside_levels(node: type[_Opaque], fake: torch.Tensor) -> torch.Tensor:
    """Make a fake the result of a node that is created outside all active levels of torch.func; return the fake."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), temporarily_clear_interpreter_stack():
        return _result_of(node, fake)


def _result_of(node: type[_Opaque], fake: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        source = torch.empty(0, device="meta", requires_grad=True)
        result: torch.Tensor = node.apply(source, fake)  # type: ignore[no-untyped-call]
        return result


def tensor_and_steps_to(node: Node, tensors: Callable[[], Iterable[torch.Tensor]]) -> tuple[torch.Tensor, Steps] | None:
    """Return the first tensor whose computation contains a node, with the steps from its `grad_fn`, or None.

    The trace identifies a node that has hooks by this tensor and these steps. They stay valid, because no pass over the
    trace moves the node to another tensor.
    """
    with torch._C.DisableTorchFunction():
        direct = next((tensor for tensor in tensors() if tensor.grad_fn is node), None)
        if direct is not None:
            return direct, ()
        computed = [(tensor, maker) for tensor in tensors() if (maker := tensor.grad_fn) is not None]
        makers = {id(maker): maker for _, maker in computed}  # keeps the nodes alive, and so their identities valid
        return next(((tensor, steps) for tensor, maker in computed for steps in _steps_to(node, maker, makers)), None)


def _steps_to(node: Node, start: Node, makers: Mapping[int, Node]) -> Iterator[Steps]:
    """Yield the paths from one node to another that do not pass nodes of other tensors.

    A path ends at a node that represents a graph from outside.
    """
    met: dict[int, Node] = {}
    pending: list[tuple[Node, Steps]] = [(start, ())]
    while pending:
        current, steps = pending.pop()
        if current is node:
            yield steps
        is_other = current is not start and id(current) in makers
        if is_other or id(current) in met or isinstance(current, FROM_OUTSIDE | FROM_CALL | FROM_VALUES):
            continue
        met[id(current)] = current
        edges = ((index, following) for index, (following, _) in enumerate(current.next_functions))
        pending += [(following, (*steps, index)) for index, following in edges if following is not None]
