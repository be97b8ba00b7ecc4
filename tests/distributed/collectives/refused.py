"""Programs that are refused with the name of the called function and their own line."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

CASES: dict[str, tuple[Callable[..., Any], str]] = {}


def refused(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a program with the name in its error."""

    def register(program: Callable[..., Any]) -> Callable[..., Any]:
        CASES[program.__name__] = program, name
        return program

    return register


@refused("torch.distributed.all_gather_object")
def gather_objects(x):
    objects = [None, None]
    dist.all_gather_object(objects, "text")
    return x * 2


@refused("torch.distributed.broadcast_object_list")
def broadcast_objects(x):
    dist.broadcast_object_list([1, 2])
    return x * 2


@refused("torch.distributed.new_group")
def make_group(x):
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=group)
    return x


@refused("torch.distributed.destroy_process_group")
def destroy_group(x):
    dist.destroy_process_group()
    return x


@refused("is completed")
def ask_work(x):
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    return x


@refused("get_future")
def ask_future(x):
    dist.all_reduce(x, async_op=True).get_future().wait()
    return x


@refused("work")
def return_work(x):
    return x, dist.all_reduce(x, async_op=True)


@refused("recv_anysource")
def receive_of_anybody(x):
    if dist.get_rank() == 0:
        dist.recv(x)
    else:
        dist.send(x, 0)
        dist.group.WORLD.recv_anysource([x], 0)
    return x


@refused("boxed")
def operator_of_process_group(x):
    torch.ops.c10d.allreduce_([x], dist.group.WORLD.boxed(), dist.ReduceOp.SUM, None, True, -1)
    return x


@refused("allreduce")
def method_of_backend(x):
    dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([x]).wait()
    return x


@refused("allreduce")
def collective_within_vmap(x):
    def body(row):
        dist.all_reduce(row)
        return row

    return torch.vmap(body)(x)


@refused("torch.Tensor.__bool__")
def branch_by_reduced_value(x):
    dist.all_reduce(x)
    if x.sum() > 10:
        return x * 2
    return x


@refused("allgather_coalesced")
def gather_coalesced(x):
    outputs = [[torch.empty_like(x)] for _ in range(2)]
    dist.all_gather_coalesced(outputs, [x])
    return outputs


@refused("not contiguous")
def all_to_all_of_transposed(x):
    received = torch.empty(3, 4, dtype=x.dtype).t()
    dist.all_to_all_single(received, x)
    return received


@refused("split sizes [1, 2] for 4 rows and 2 ranks")
def all_to_all_with_wrong_rows(x):
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x, [2, 2], [1, 2])
    return received


@refused("do not match")
def all_to_all_of_other_number_of_elements(x):
    received = torch.empty(2, 2, dtype=x.dtype)
    dist.all_to_all_single(received, x)
    return received


@refused("gaps in memory")
def all_reduce_of_every_second_row(x):
    dist.all_reduce(x[::2])
    return x


@refused("gaps in memory")
def broadcast_of_columns(x):
    dist.broadcast(x[:, 1:], 1)
    return x


@refused("gaps in memory")
def reduce_of_columns(x):
    dist.reduce(x[:, 1:], 0)
    return x


@refused("gaps in memory")
def reduce_scatter_into_columns(x):
    dist.reduce_scatter(x[:, 1:], [torch.ones_like(x[:, 1:]), torch.zeros_like(x[:, 1:])])
    return x


@refused("gaps in memory")
def scatter_into_columns(x):
    dist.scatter(x[:, 1:], [torch.ones_like(x[:, 1:]), x[:, 1:] * 2] if dist.get_rank() == 0 else None)
    return x


MADE_IN_EAGER = (
    *("gather_objects", "broadcast_objects", "make_group", "ask_work", "ask_future"),
    *("method_of_backend", "gather_coalesced", "all_to_all_of_transposed"),
    *("all_reduce_of_every_second_row", "broadcast_of_columns", "reduce_of_columns"),
    *("reduce_scatter_into_columns", "scatter_into_columns"),
)
