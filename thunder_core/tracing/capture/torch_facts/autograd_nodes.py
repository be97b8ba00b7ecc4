"""Nodes of autograd's graph: those at which tracing stops, and the way to one from a tensor without data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _disable_current_modes


class _Opaque(torch.autograd.Function):
    """The identity in place, with a backward that never runs: a tensor that it returns may be written to."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        ctx.mark_dirty(fake)
        return fake

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("no gradients are computed while tracing")


class _FromOutside(_Opaque):
    """The node behind a tensor that was made before the program began."""


class _FromCall(_Opaque):
    """The node behind a tensor that a called compiled function made."""


FROM_OUTSIDE: type = _FromOutside._backward_cls
FROM_CALL: type = _FromCall._backward_cls
Steps = tuple[int, ...]  # from a node to another: the position of an edge at each node on the way


def followed_from_outside(fake: torch.Tensor) -> torch.Tensor:
    """A fake as autograd's result of something outside of the program."""
    return _behind(_FromOutside, fake)


def followed_from_call(fake: torch.Tensor) -> torch.Tensor:
    """A fake as autograd's result of a compiled function that the program calls, beneath the levels that it is in."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), temporarily_clear_interpreter_stack():
        return _behind(_FromCall, fake)


def _behind(node: type[_Opaque], fake: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        source = torch.empty(0, device="meta", requires_grad=True)
        result: torch.Tensor = node.apply(source, fake)  # type: ignore[no-untyped-call]
        return result


def place_of_node(node: Node, tensors: Callable[[], Iterable[torch.Tensor]]) -> tuple[torch.Tensor, Steps] | None:
    """The first tensor whose making a node belongs to, with the steps from its `grad_fn` on; None where none has it.

    So what makes a hooked node is known by a tensor that it makes, which no pass over the trace gives to another one.
    """
    with torch._C.DisableTorchFunction():
        found = next((tensor for tensor in tensors() if tensor.grad_fn is node), None)
        if found is not None:
            return found, ()
        made = [(tensor, maker) for tensor in tensors() if (maker := tensor.grad_fn) is not None]
        makers = {id(maker): maker for _, maker in made}  # which keeps them, and their identities
        return next(((tensor, steps) for tensor, maker in made for steps in _steps_to(node, maker, makers)), None)


def _steps_to(node: Node, start: Node, makers: Mapping[int, Node]) -> Iterator[Steps]:
    """Yield the steps that lead from one node to another, past the nodes that make other tensors.

    Nodes that stand for a graph from elsewhere lead on to nothing.
    """
    met: dict[int, Node] = {}
    pending: list[tuple[Node, Steps]] = [(start, ())]
    while pending:
        current, steps = pending.pop()
        if current is node:
            yield steps
        is_other = current is not start and id(current) in makers
        if is_other or id(current) in met or isinstance(current, FROM_OUTSIDE | FROM_CALL):
            continue
        met[id(current)] = current
        following = ((place, one) for place, (one, _) in enumerate(current.next_functions) if one is not None)
        pending += [(one, (*steps, place)) for place, one in following]
