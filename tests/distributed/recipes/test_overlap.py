"""A process group that delays each collective: a step takes little more time than its computation.

The computation is simulated by pauses, so the load of the machine hardly matters.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,misc,attr-defined"

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thunder_core as thunder
from benchmarks.timeline import Network, claimed_traces, events_of, predict
from thunder_core.tracing.analysis.collectives import collectives_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
DELAY = PAUSE = 0.02  # seconds of a collective, and of a layer's computation
LAYERS = 8
SLACK = 5 * DELAY
BEGUN: list[tuple[str, int]] = []


@torch.library.custom_op("thunder_tests::pause", mutates_args=())
def pause(x: Tensor) -> Tensor:
    time.sleep(PAUSE)
    return x.clone()


pause.register_fake(lambda x: torch.empty_like(x))
pause.register_autograd(lambda ctx, gradient: pause(gradient))


class Delayed(dist._Work):
    """A work that ends some time after its start. `DistributedDataParallel` waits for its future."""

    def __init__(self, tensors: list[Tensor], begin: float) -> None:
        super().__init__()
        self.done = begin + DELAY
        self.future = torch.futures.Future[list[Tensor]]()
        threading.Timer(self.done - time.monotonic(), self.future.set_result, (tensors,)).start()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self.future

    def wait(self, timeout: Any = None) -> bool:
        time.sleep(max(0.0, self.done - time.monotonic()))
        return True


class Delays(Network):
    """The simulated network of the groups."""

    def seconds(self, kind: str, size: int) -> float:
        return DELAY


class Delaying(dist.ProcessGroup):
    """A group of one rank whose collectives take some time; with `queues`, they run one after the other."""

    queues = False
    free = 0.0  # when the latest collective ends
    group_name = property(lambda self: "0")

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)

    def getBackendName(self) -> str:
        return "delaying"

    def begin(self, kind: str, outputs: list[Tensor], inputs: list[Tensor]) -> Delayed:
        BEGUN.append((kind, sum(one.nbytes for one in inputs)))
        for output, value in zip(outputs, inputs, strict=True):
            output.copy_(value.view_as(output))
        now = time.monotonic()
        Delaying.free = (max(now, Delaying.free) if self.queues else now) + DELAY
        return Delayed(outputs, Delaying.free - DELAY)

    def broadcast(self, tensors, options=None):
        return self.begin("broadcast", tensors, tensors)

    def allgather(self, outputs, inputs, options=None):
        return self.begin("all_gather", [parts[0] for parts in outputs], inputs)

    def allreduce(self, tensors, options=None):
        return self.begin("all_reduce", tensors, tensors)

    def allreduce_coalesced(self, tensors, options=None):
        return self.begin("all_reduce_coalesced", tensors, tensors)

    def allgather_into_tensor_coalesced(self, outputs, inputs, options=None):
        return self.begin("all_gather_into_tensor_coalesced", outputs, inputs)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, options=None):
        return self.begin("reduce_scatter_tensor_coalesced", outputs, inputs)


@pytest.fixture(autouse=True)
def delaying_group() -> Iterator[None]:
    if "delaying" not in dist.Backend.backend_list:
        dist.Backend.register_backend("delaying", Delaying, devices=["cpu"])
    dist.init_process_group("delaying", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Slow(nn.Module):
    """A layer that pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = pause(self.linear(x))
        return result


class Layers(nn.Module):
    """A stack of slow layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Slow() for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def seconds_of(model: Any) -> float:
    """The seconds of the fastest of three steps after the first step, which compiles.

    The collectives of the last step are recorded.
    """
    taken = []
    for _ in range(4):
        BEGUN.clear()
        began = time.monotonic()
        model(torch.ones(2, 4)).sum().backward()
        taken.append(time.monotonic() - began)
    return min(taken[1:])


OPTIONS: dict[str, tuple[str, dict[str, Any], int]] = {
    "ddp": ("ddp", {"bucket_cap_mb": 0.00005}, LAYERS),
    "fsdp that gathers again": ("fsdp", {}, 3 * LAYERS - 1),  # no gradient needs the weight of the first layer
    "fsdp that gathers once": ("fsdp", {"reshard_after_forward": False}, 2 * LAYERS),
}


DELAYS = Delays(ranks=1, bandwidth=0.0, latency=0.0, one_at_a_time=False)


@pytest.mark.parametrize("case", OPTIONS)
def test_collectives_overlap_computation(case: str) -> None:
    recipe, options, collectives = OPTIONS[case]
    compiled = thunder.compile(Layers(), recipe, without=["inductor"], **options)
    seconds = seconds_of(compiled)
    assert len(BEGUN) == collectives
    traces = thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]
    assert [(one.kind, one.bytes) for trace in traces for one in collectives_of(trace)] == BEGUN
    delays = (
        2 * DELAY if recipe == "fsdp" else DELAY
    )  # the first gather and the last reduction have nothing beside them
    if case == "fsdp that gathers again":
        delays += DELAY  # the first gather of the backward
    computation = 2 * LAYERS * PAUSE
    # The simulation from the lines of the traces predicts the measured step.
    assert abs(seconds - predict(events_of(claimed_traces(compiled), rounds=1), DELAYS).step) < SLACK
    assert computation < seconds < computation + delays + SLACK < computation + collectives * DELAY


def test_wrapped_module_reduces_buckets_while_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """DistributedDataParallel reduces the bucket of a layer while the compiled backward computes the next layer."""
    monkeypatch.setattr(Delaying, "queues", True)
    model = DistributedDataParallel(thunder.jit(Layers()), bucket_cap_mb=0.00005)  # type: ignore[arg-type]
    seconds = seconds_of(model)
    computation = 2 * LAYERS * PAUSE
    assert len(BEGUN) == LAYERS
    assert computation < seconds < computation + DELAY + SLACK < computation + LAYERS * DELAY
    result = model(torch.ones(2, 4)).sum()
    BEGUN.clear()
    counts: list[int] = []  # the buckets whose reduction has begun when the gradient of the first layer is computed
    model.module.layers[0].linear.weight.register_hook(lambda _: counts.append(len(BEGUN)))
    result.backward()
    assert counts == [LAYERS - 1]
