"""A function of tensors as a CUDA graph: recorded at its second call, replayed from then on.

A graph reads and writes fixed addresses. An input that has never moved (a weight, mostly) is read where it is; one that
has moved is copied into a place of its own before each replay. Results are copied out, since the next replay writes
over them; those that share memory with each other or with an input do so after as before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, TypeAlias

import torch

Place: TypeAlias = tuple[int, int]  # a device and a stream of it


@dataclass(frozen=True)
class View:
    """A result as a view of an input (`of` its number), or of a memory of its own; `offset` is in bytes from there."""

    of: int
    fresh: bool
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Recording:
    """A graph with what it reads and writes: inputs in place by their addresses, `buffers` for those that move."""

    replay: Callable[[], None]
    addresses: dict[int, int]
    buffers: dict[int, torch.Tensor]
    memories: tuple[torch.UntypedStorage, ...]
    views: tuple[View, ...]

    def moved(self, tensors: Sequence[torch.Tensor]) -> set[int]:
        """The inputs that are not where the graph reads them."""
        return {place for place, address in self.addresses.items() if tensors[place].data_ptr() != address}

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Replay it for these inputs."""
        for place, buffer in self.buffers.items():
            buffer.copy_(tensors[place])
        self.replay()
        copies: list[Any] = [memory.clone() for memory in self.memories]  # type: ignore[no-untyped-call]
        return tuple(self._result(view, tensors, copies) for view in self.views)

    def _result(self, view: View, tensors: Sequence[torch.Tensor], copies: Sequence[Any]) -> torch.Tensor:
        if view.fresh:
            empty = torch.empty(0, dtype=view.dtype, device=copies[view.of].device)
            return empty.set_(copies[view.of], view.offset // view.dtype.itemsize, view.size, view.stride)
        given = tensors[view.of]
        offset, rest = divmod(byte_offset(given) + view.offset, view.dtype.itemsize)
        if rest:
            raise RuntimeError(f"an input lies at an offset in its storage that no view with {view.dtype} can have")
        base = given if given.dtype == view.dtype else given.as_strided((0,), (1,), 0).view(view.dtype)
        return base.as_strided(view.size, view.stride, offset)


class Cuda:
    """The part of CUDA that is wanted: where a call runs, and recording. Graphs of one stream share their memory."""

    def __init__(self) -> None:
        self._pools: dict[Place, Any] = {}

    def place(self, tensors: Sequence[torch.Tensor]) -> Place | None:
        """The device and its current stream; None where nothing can be recorded now."""
        device = tensors[0].device if tensors else torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_current_stream_capturing() or device.index != torch.cuda.current_device():
            return None
        return device.index, torch.cuda.current_stream(device).cuda_stream

    def record(self, function: Callable[[], Any], place: Place) -> tuple[Callable[[], None], Any]:
        """A function that replays the kernels of this one, and its results, whose memory each replay writes to."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what is made at a first call, such as a library's workspace, is not recorded
            function()
        torch.cuda.current_stream().wait_stream(side)
        pool = self._pools.setdefault(place, torch.cuda.graph_pool_handle())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            results = function()
        return graph.replay, results


CUDA = Cuda()
_LOCK = RLock()  # copying in, replaying and copying out are one


@dataclass(eq=False)
class Captured:
    """In place of a function of constants and tensors: its graph, for each stream that it is called on."""

    function: Callable[..., Any]
    constants: int
    recordings: dict[Place, Recording] = field(default_factory=dict)
    seen: dict[Place, list[int]] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)
    failed: str = ""

    def __call__(self, *args: Any) -> Any:
        """Run the function's kernels and return its results."""
        tensors = args[self.constants :]
        place = None if self.failed else CUDA.place(tensors)
        if place is None:
            return self.function(*args)
        with _LOCK, torch.no_grad():
            if place not in self.seen:
                self.seen[place] = [tensor.data_ptr() for tensor in tensors]
                return self.function(*args)
            recording = self._recording(place, args)
            return self.function(*args) if recording is None else recording(tensors)

    def _recording(self, place: Place, args: tuple[Any, ...]) -> Recording | None:
        """The graph, made anew where an input has moved for the first time; None where there can be none."""
        tensors = args[self.constants :]
        recording = self.recordings.get(place)
        moved = recording.moved(tensors) if recording else self._moved_since(place, tensors)
        if recording is not None and not moved:
            return recording
        self.moving |= moved
        self.recordings.pop(place, None)
        try:
            self.recordings[place] = self._record(place, args)
        except RuntimeError as error:
            self.failed = str(error).partition("\n")[0]
            warnings.warn(f"a CUDA graph could not be recorded: {self.failed}", RuntimeWarning, stacklevel=3)
        return self.recordings.get(place)

    def _moved_since(self, place: Place, tensors: Sequence[torch.Tensor]) -> set[int]:
        pairs = zip(self.seen[place], tensors, strict=True)
        return {number for number, (address, tensor) in enumerate(pairs) if tensor.data_ptr() != address}

    def _record(self, place: Place, args: tuple[Any, ...]) -> Recording:
        tensors = args[self.constants :]
        buffers = {number: _like(tensors[number]) for number in sorted(self.moving)}
        held = [buffers.get(number, tensor) for number, tensor in enumerate(tensors)]
        replay, results = CUDA.record(lambda: self.function(*args[: self.constants], *held), place)
        memories, views = described(results, held)
        addresses = {number: one.data_ptr() for number, one in enumerate(tensors) if number not in buffers}
        return Recording(replay, addresses, buffers, memories, views)


def captured(function: Callable[..., Any], constants: int) -> Captured:
    """The function as a graph; its first parameters are constants, the others tensors; it returns a tuple."""
    return Captured(function, constants)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout and numbers, in a place of its own."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def byte_offset(tensor: torch.Tensor) -> int:
    """The number of bytes before a tensor in its storage."""
    return int(tensor.storage_offset()) * tensor.itemsize


def described(
    results: Sequence[torch.Tensor], held: Sequence[torch.Tensor]
) -> tuple[tuple[torch.UntypedStorage, ...], tuple[View, ...]]:
    """The memories that results lie in, and how each lies in one of them, or in an input's."""
    inputs = {tensor.untyped_storage().data_ptr(): number for number, tensor in enumerate(held)}
    memories: dict[int, torch.UntypedStorage] = {}
    views = []
    for result in results:
        storage = result.untyped_storage()
        number = inputs.get(storage.data_ptr()) if storage.nbytes() else None
        fresh = number is None
        if number is None:
            memories.setdefault(storage.data_ptr(), storage)
            number = list(memories).index(storage.data_ptr())
        offset = byte_offset(result) - (0 if fresh else byte_offset(held[number]))
        views.append(View(number, fresh, tuple(result.shape), result.stride(), offset, result.dtype))
    return tuple(memories.values()), tuple(views)
