"""Programs with collectives that are differentiated, each with its arguments for one call."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.utils.checkpoint import checkpoint

from tests.distributed.collectives.collectives import numbers

CASES: dict[str, Callable[..., Any]] = {}


def case(program: Callable[..., Any]) -> Callable[..., Any]:
    """Register a program of two tensors."""
    CASES[program.__name__] = program
    return program


def arguments(call: int) -> tuple[Any, ...]:
    """Two tensors, of which the first requires a gradient."""
    return (numbers(call, 4, 3) / 50).requires_grad_(), numbers(call, 4, 3) / 70


@case
def functional_all_reduce(x, y):
    return funcol.all_reduce(x * y, "sum", dist.group.WORLD).exp() * x


@case
def functional_gather_and_scatter(x, y):
    gathered = funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD).sin()
    return funcol.reduce_scatter_tensor_autograd(gathered * 2, "sum", 0, dist.group.WORLD) + y


@case
def functional_all_to_all(x, y):
    return funcol.all_to_all_single_autograd(x * y, None, None, dist.group.WORLD).cos()


@case
def all_reduce_in_place_of_result(x, y):
    z = x * y
    dist.all_reduce(z)
    return z * 2


@case
def all_reduce_in_place_of_saved_result(x, y):
    z = (x * y).exp()
    dist.all_reduce(z)
    return z + x


@case
def all_reduce_in_place_of_saved_input(x, y):
    z = x * y
    dist.all_reduce(y)
    return z + y


@case
def all_reduce_of_leaf(x, y):
    z = x * y
    dist.all_reduce(x)
    return z + x


@case
def all_reduce_without_grad(x, y):
    z = x * y
    with torch.no_grad():
        norm = z.norm() ** 2
        dist.all_reduce(norm)
    return z / norm.sqrt()


@case
def async_all_reduce_and_broadcast(x, y):
    work = dist.all_reduce(y, async_op=True)
    z = x.sin()
    work.wait()
    dist.broadcast(y, 0)
    return z * y


@case
def autograd_all_reduce(x, y):
    return dist.nn.functional.all_reduce(x * y).exp()


@case
def autograd_gather_and_broadcast(x, y):
    first, second = dist.nn.functional.all_gather(x)
    return first * 2 + second.sin() + dist.nn.functional.broadcast(x * y, 1)


@case
def autograd_reduce_and_all_to_all(x, y):
    reduced = dist.nn.functional.reduce(x.cos(), 0)
    return reduced * y, dist.nn.functional.all_to_all_single(torch.empty_like(x), x * 2)


@case
def checkpointed_all_reduce(x, y):
    def block(z):
        return funcol.all_reduce(z.sin(), "sum", dist.group.WORLD).exp()

    return checkpoint(block, x * y, use_reentrant=False)


@case
def gradient_that_one_rank_needs(x, y):
    z = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return z * y if dist.get_rank() == 0 else z + y


@case
def send_and_receive_activations(x, y):
    z = x * 2
    received = torch.empty_like(z)
    other = 1 - dist.get_rank()
    for work in (dist.isend(z.detach(), other), dist.irecv(received, other)):
        work.wait()
    return z + received * y
