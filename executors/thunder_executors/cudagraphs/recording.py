"""Recording on CUDA: streams and memory pools that live as long as the process, and the capture itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from thunder_core.tracing.extension.memory_pools import bytes_of_pools
from thunder_core.tracing.library.collection import pause_collection
from thunder_executors.cudagraphs.arrivals import COUNTERS, counters_of_graph

DeviceStream: TypeAlias = tuple[int, int]  # a device, and a stream of it


class Cuda:
    """CUDA's part of recording graphs: the device and stream of a call, and the capture of a function.

    Graphs that are replayed on one stream share a memory pool. PyTorch frees a pool, and refuses to use it again, when
    its last graph is freed, so each pool has an extra graph here, which is never replayed. In a shared pool, a graph's
    results may be at the addresses of another graph's temporaries. A graph whose results are read after other replays
    therefore has a pool of its own. The capture stream belongs to this object, because PyTorch's own capture stream is
    on the device that was current at the first capture.
    """

    def __init__(self) -> None:
        self._pools: dict[DeviceStream, torch.cuda.CUDAGraph] = {}
        self._streams: dict[int, Any] = {}

    def device_stream(self, tensors: Sequence[torch.Tensor]) -> DeviceStream | None:
        """Return the device of the tensors and its current stream; None if nothing can be recorded now.

        Without tensors, the device is unknown if there are several.
        """
        if torch.cuda.is_current_stream_capturing() or (not tensors and torch.cuda.device_count() > 1):
            return None
        device = tensors[0].device if tensors else torch.device("cuda", torch.cuda.current_device())
        return device.index, torch.cuda.current_stream(device).cuda_stream

    def memory_of(self, device: int) -> int:
        """Return the bytes of a device's memory."""
        return int(torch.cuda.get_device_properties(device).total_memory)

    def record(
        self, function: Callable[[], Any], device_stream: DeviceStream, *, has_own_pool: bool = False
    ) -> tuple[Replay, Any]:
        """Return a function that replays the function's kernels, and the results, which each replay overwrites.

        Replays of other graphs overwrite the results, too, unless the graph `has_own_pool`.

        The function must have been called before in this process, because a library that is loaded at a first call
        cannot be loaded during a capture. Raises `RuntimeError` for a function that cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device_stream[0]):
            torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]  # creates this thread's cuBLAS handle
            stream, current = self._stream(device_stream[0]), torch.cuda.current_stream()
            torch.cuda.synchronize()
            counters = torch.zeros(COUNTERS, dtype=torch.int32, device=f"cuda:{device_stream[0]}")
            stream.wait_stream(current)
            with (
                torch.cuda.stream(stream),
                pause_collection(),
                own_workspaces(),
                counters_of_graph(counters, stream),
            ):
                pool = torch.cuda.graph_pool_handle() if has_own_pool else self._pool(device_stream)
                results = capture_into(graph, pool, function, device_stream[0])
            current.wait_stream(stream)
        return Replay(graph, counters), results

    def pool_nbytes(self, replay: Replay) -> int:
        """Return the bytes of the memory pool of a graph: its results and temporaries, rounded up by the allocator."""
        return bytes_of_pools({replay.graph.pool()})

    def _stream(self, device: int) -> Any:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    def _pool(self, device_stream: DeviceStream) -> Any:
        if device_stream not in self._pools:
            keeper, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
            capture_into(keeper, pool, lambda: torch.zeros(1, device=f"cuda:{device_stream[0]}"), device_stream[0])
            self._pools[device_stream] = keeper
        return self._pools[device_stream].pool()


@dataclass(frozen=True, eq=False)
class Replay:
    """A graph that a call replays, with the counters of its kernels, which live as long as the graph.

    The method `replay` is looked up at each call, because a benchmark replaces the method.
    """

    graph: torch.cuda.CUDAGraph
    counters: torch.Tensor

    def __call__(self) -> None:
        """Replay the graph."""
        self.graph.replay()


def capture_into(graph: torch.cuda.CUDAGraph, pool: Any, function: Callable[[], Any], device: int) -> Any:
    """Capture a function on the current stream of a device, and return its results."""
    generator: Any = torch.cuda.default_generators[device]
    state = generator.clone_state()
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        results = function()
    except BaseException:
        with suppress(RuntimeError):  # ending the invalid capture raises again
            graph.capture_end()
        generator.graphsafe_set_state(state)  # a failed capture leaves the state marked as capturing
        raise
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")  # no result has elements
        graph.capture_end()
    return results


@contextmanager
def own_workspaces() -> Iterator[None]:
    """Within the context, give matrix products new workspaces, which graphs on different streams must not share."""
    clear = torch._C._cuda_clearCublasWorkspaces
    clear()
    try:
        yield
    finally:
        clear()
