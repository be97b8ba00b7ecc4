"""A process group in Python that counts its calls: they match the collectives of the trace, in order."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,misc"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import thunder_core as thunder
from thunder_core.tracing.analysis.collectives import collectives_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
CALLS: list[tuple[str, int]] = []


class Counting(dist.ProcessGroup):
    """A group of one rank that notes the bytes of each call, and lets gloo make it."""

    group_name = property(lambda self: "0")

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self.inner = dist.ProcessGroupGloo(store, rank, size, timeout)  # type: ignore[attr-defined]

    def getBackendName(self) -> str:
        return "counting"

    def allreduce(self, tensors, options=None):
        CALLS.append(("all_reduce", tensors[0].nbytes))
        return self.inner.allreduce(tensors, options)

    def broadcast(self, tensors, options=None):
        CALLS.append(("broadcast", tensors[0].nbytes))
        return self.inner.broadcast(tensors, options)

    def reduce(self, tensors, options=None):
        CALLS.append(("reduce", tensors[0].nbytes))
        return self.inner.reduce(tensors, options)

    def _allgather_base(self, output, tensor, options=None):
        CALLS.append(("all_gather_into_tensor", tensor.nbytes + output.nbytes))
        return self.inner._allgather_base(output, tensor, options)

    all_gather_single = _allgather_base

    def barrier(self, opts=None):
        CALLS.append(("barrier", 0))
        return self.inner.barrier(opts)


@pytest.fixture(autouse=True)
def counting_group() -> Iterator[None]:
    if "counting" not in dist.Backend.backend_list:
        dist.Backend.register_backend("counting", Counting, devices=["cpu"])
    dist.init_process_group("counting", store=dist.HashStore(), rank=0, world_size=1)
    CALLS.clear()
    yield
    dist.destroy_process_group()


def program(x, y):
    dist.all_reduce(x)
    funcol.all_reduce(y, "sum", dist.group.WORLD)  # nobody reads it
    z = funcol.all_reduce(y, "sum", dist.group.WORLD).sin()
    dist.barrier()
    work = dist.broadcast(y, 0, async_op=True)
    gathered = torch.empty_like(z)
    dist.all_gather_into_tensor(gathered, z)
    work.wait()
    dist.reduce(x, 0)
    return gathered + y


def test_calls_match_the_trace_and_eager() -> None:
    compiled = thunder.jit(program)
    calls = []
    for function in (program, compiled, compiled):
        CALLS.clear()
        function(torch.ones(3), torch.ones(5))
        calls.append([*CALLS])
    assert calls[0] == calls[1] == calls[2]
    assert len(calls[0]) == 7
    trace = thunder.last_traces(compiled)[-1]
    assert [(collective.kind, collective.bytes) for collective in collectives_of(trace)] == calls[0]


def test_calls_of_a_backward_are_eagers() -> None:
    def loss(x):
        return funcol.all_reduce(x.sin(), "sum", dist.group.WORLD).exp().sum()

    calls = []
    for function in (loss, thunder.jit(loss)):
        CALLS.clear()
        function(torch.ones(3, requires_grad=True)).backward()
        calls.append([*CALLS])
    assert calls[0] == calls[1] == [("all_reduce", 12), ("all_reduce", 12)]
