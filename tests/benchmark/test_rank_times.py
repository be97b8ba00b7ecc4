"""The times of collectives on a rank: what overlaps with computation, and what is recorded in real calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise

import pytest
import torch
import torch.distributed as dist

import thunder_core as thunder
from tests.distributed.models import Layers, tokens
from thunder_core.workflow.benchmark.rank_recorder import CollectiveRecorder, HostClock
from thunder_core.workflow.benchmark.rank_times import CollectiveTimes, RankTimes, TraceTimes


def collective(start: float, wait: float, end: float) -> CollectiveTimes:
    times = {"start": start, "wait": wait, "end": end}
    return CollectiveTimes(kind="all_reduce", group="0", bytes=8, trace="backward", line=1, **times)


def test_overlap_is_the_time_in_flight_without_waits() -> None:
    rank = RankTimes(
        rank=0,
        traces=(TraceTimes(name="computation", start=0, end=4), TraceTimes(name="backward", start=5, end=10)),
        collectives=(collective(1, 3, 4), collective(2, 7, 8), collective(9, 9, 10)),
    )
    assert rank.seconds == 10
    assert rank.waiting == 3
    assert rank.in_flight == 8  # from 1 to 8, and from 9 to 10
    assert rank.overlapped == 5
    # the second collective waits for the first from 3 to 4
    assert [rank.seconds_computed_during(times) for times in rank.collectives] == [2, 4, 0]


class CountingClock(HostClock):
    """A clock that advances by one second at each query."""

    def __init__(self) -> None:
        self.numbers = count()

    def now(self) -> int:
        return next(self.numbers)


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("recipe", ["ddp", "fsdp"])
def test_collectives_of_a_step_are_recorded_with_the_lines_of_the_traces(recipe: str) -> None:
    model = thunder.compile(Layers(), recipe, without=["inductor"], bucket_cap_mb=0.0005)
    model(tokens(0, 0)).pow(2).mean().backward()
    recorder = CollectiveRecorder(torch.device("cpu"))
    recorder.clock = CountingClock()
    with recorder.recording():
        for _ in range(2):
            recorder.begin()
            model(tokens(1, 0)).pow(2).mean().backward()
    times = recorder.times(3)
    assert times.rank == 3
    assert [trace.name for trace in times.traces] == ["computation", "backward"]
    lines = {
        trace.name: [
            number
            for number, line in enumerate(trace.bound_symbols, start=1)
            if line.communicates and ".wait" not in line.symbol.name
        ]
        for trace in (thunder.last_traces(model)[-1], thunder.last_backward_traces(model)[-1])
    }
    recorded = {name: [one.line for one in times.collectives if one.trace == name] for name in lines}
    assert recorded == lines
    for timed in times.collectives:
        assert timed.bytes > 0
        assert timed.start < timed.wait < timed.end
    pairs = pairwise(times.collectives)
    assert any(later.start < earlier.end for earlier, later in pairs)  # two are in flight at the same time
    without = recorder.times(0)
    model(tokens(2, 0))
    assert recorder.times(0) == without  # nothing is recorded after the context


@pytest.mark.usefixtures("group_of_one")
def test_last_call_begins_with_the_last_forward() -> None:
    reduce = thunder.jit(lambda x: torch.distributed._functional_collectives.all_reduce(x, "sum", "0"))
    reduce(torch.ones(2))
    recorder = CollectiveRecorder(torch.device("cpu"))
    recorder.clock = CountingClock()
    with recorder.recording():
        recorder.begin()
        for _ in range(3):
            reduce(torch.ones(2))
    assert len(recorder.times(0).collectives) == 3
    last = recorder.times(0, last_call=True)
    assert [(one.kind, one.bytes) for one in last.collectives] == [("all_reduce", 8)]
    assert last.traces[0].start == 0
