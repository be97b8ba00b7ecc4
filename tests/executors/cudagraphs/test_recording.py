"""The capture of graphs on several GPUs, on a CUDA that only notes which device and stream are current."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thunder_executors.cudagraphs import arrivals, recording
from thunder_executors.cudagraphs.recording import Cuda


class Stream:
    """A stream of a device."""

    def __init__(self, device: int) -> None:
        self.device, self.waited = device, []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


class FakeCuda:
    """The part of `torch.cuda` that recording calls; `captures` has the device, stream and pool of each capture."""

    def __init__(self, devices: int) -> None:
        self.device, self.captures, self.handles, self.synchronized = 0, [], 0, []
        self.replayed, self.cleared = 0, []
        self.current = [Stream(device) for device in range(devices)]
        self.default_generators = [FakeGenerator() for _ in range(devices)]
        self.Stream = Stream
        self.CUDAGraph = lambda: FakeGraph(self)

    @contextmanager
    def changed(self, device: int, stream: Stream | None = None) -> Iterator[None]:
        before, stream_before = self.device, self.current[device]
        self.device, self.current[device] = device, stream or stream_before
        yield
        self.device, self.current[device] = before, stream_before

    def stream(self, stream: Stream) -> Any:
        return self.changed(stream.device, stream)

    def current_stream(self) -> Stream:
        return self.current[self.device]

    def graph_pool_handle(self) -> int:
        self.handles += 1
        return self.handles

    def synchronize(self) -> None:
        self.synchronized.append(self.device)

    def clear(self) -> None:
        self.cleared.append(len(self.captures))

    def current_blas_handle(self) -> int:
        return self.device

    def zeros(self, size: int, device: str, dtype: object = None) -> SimpleNamespace:
        """Return new memory, with the stream on which it is set to zero."""
        return SimpleNamespace(size=size, device=device, dtype=dtype, stream=self.current_stream())


class FakeGenerator:
    """A generator whose state is counted."""

    def __init__(self) -> None:
        self.state = 0

    def clone_state(self) -> int:
        return self.state

    def graphsafe_set_state(self, state: int) -> None:
        self.state = state


class FakeGraph:
    """A graph that notes where it is captured."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.begun, self.the_pool = cuda, False, None

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.the_pool, self.begun = pool, True
        self.cuda.captures.append((self.cuda.device, self.cuda.current_stream(), pool))

    def capture_end(self) -> None:
        assert self.begun
        self.begun = False

    def pool(self) -> int | None:
        return self.the_pool

    def replay(self) -> None:
        self.cuda.replayed += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda(3)
    names = [
        name
        for name in dir(fake)
        if not name.startswith("_") and name not in ("device", "captures", "replayed", "zeros")
    ]
    context = SimpleNamespace(device=fake.changed, **{name: getattr(fake, name) for name in names})
    replaced = SimpleNamespace(
        cuda=context,
        zeros=fake.zeros,
        int32=torch.int32,
        _C=SimpleNamespace(_cuda_clearCublasWorkspaces=fake.clear),
    )
    monkeypatch.setattr(recording, "torch", replaced)
    return fake


def test_each_gpu_has_its_stream_and_its_pool_whichever_is_current(cuda: FakeCuda) -> None:
    recorder, devices = Cuda(), []
    for device in (1, 0, 1, 2, 1):
        _, result = recorder.record(lambda: devices.append(cuda.device) or cuda.current_stream(), (device, 7))
        assert result.device == device
        assert result is not cuda.current[device], "captures have a stream of their own"
    assert devices == [1, 0, 1, 2, 1]
    assert cuda.device == 0
    assert cuda.synchronized == devices
    by_device = {device: {(id(s), p) for d, s, p in cuda.captures if d == device} for device in range(3)}
    assert [len(found) for found in by_device.values()] == [1, 1, 1]
    assert len(set.union(*by_device.values())) == 3
    assert all(stream.device == device for device, stream, _ in cuda.captures)
    assert len(cuda.captures) == 5 + 3, "a graph for each pool keeps the pool alive"


def test_streams_of_one_gpu_share_no_pool(cuda: FakeCuda) -> None:
    recorder = Cuda()
    for stream in (7, 8, 7):
        recorder.record(lambda: None, (1, stream))
    pools = [pool for _, _, pool in cuda.captures]
    assert len(set(pools)) == 2


def test_a_graph_whose_results_outlive_other_replays_shares_no_pool(cuda: FakeCuda) -> None:
    recorder = Cuda()
    for has_own_pool in (False, True, False, True):
        recorder.record(lambda: None, (0, 7), has_own_pool=has_own_pool)
    keeper, first, second, third, fourth = (pool for _, _, pool in cuda.captures)
    assert keeper == first == third
    assert len({first, second, fourth}) == 3


def test_graphs_of_two_streams_share_no_workspace_and_the_allocators_cache_is_kept(cuda: FakeCuda) -> None:
    """A workspace that outlives a capture would serve the next one. The stand-in has no `empty_cache` to call."""
    recorder = Cuda()
    for stream in (7, 8):
        recorder.record(lambda: None, (0, stream))
    assert cuda.cleared == [0, 2, 2, 4], "cleared before and after each graph, with the graph that keeps its pool"


def test_a_capture_that_fails_leaves_the_device_the_generator_and_the_next_capture_unchanged(cuda: FakeCuda) -> None:
    def draws() -> None:
        cuda.default_generators[1].state = 5
        raise RuntimeError("operation not permitted when stream is capturing")

    recorder = Cuda()
    with pytest.raises(RuntimeError, match="not permitted"):
        recorder.record(draws, (1, 7))
    assert cuda.default_generators[1].state == 0
    assert recorder.record(lambda: 3, (1, 7))[1] == 3


def test_a_place_is_the_device_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: asked.append(device) or SimpleNamespace(cuda_stream=9)
    )
    tensor: Any = SimpleNamespace(device=torch.device("cuda", 1))
    assert Cuda().device_stream((tensor,)) == (1, 9)
    assert asked == [torch.device("cuda", 1)]


def test_each_graph_has_counters_that_are_zeroed_before_its_capture_and_live_as_long_as_the_graph(
    cuda: FakeCuda,
) -> None:
    seen = []

    def note() -> None:
        counters = arrivals._captured.get()
        assert counters is not None
        seen.append(counters)
        assert counters.stream is cuda.current_stream()

    recorder = Cuda()
    replays: list[Any] = [recorder.record(note, place)[0] for place in ((1, 7), (1, 7), (1, 8), (0, 7))]
    assert [replay.counters for replay in replays] == [each.counters for each in seen]
    assert len({id(replay.counters) for replay in replays}) == 4
    for replay, device in zip(replays, (1, 1, 1, 0), strict=True):
        assert (replay.counters.size, replay.counters.dtype) == (arrivals.COUNTERS, torch.int32)
        assert replay.counters.device == f"cuda:{device}"
        assert replay.counters.stream is cuda.current[device], "zeroed on the stream of the call, which is not captured"
    assert arrivals._captured.get() is None
    replays[0]()
    assert cuda.replayed == 1


@pytest.mark.parametrize(("count", "found"), [(1, (0, 9)), (2, None)])
def test_a_function_without_tensors_is_recorded_if_there_is_one_gpu(
    count: int, found: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=9))
    assert Cuda().device_stream(()) == found


def test_the_bytes_of_a_graphs_pool_are_those_of_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [{"segment_pool_id": pool, "total_size": size} for pool, size in (((0, 1), 5), ((0, 2), 7), ([0, 1], 3))]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    replay: Any = SimpleNamespace(graph=SimpleNamespace(pool=lambda: (0, 1)))
    assert Cuda().pool_nbytes(replay) == 8
