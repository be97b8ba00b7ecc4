"""A function of tensors as a CUDA graph: recorded at its second call, replayed from then on.

A graph reads and writes fixed addresses. An input that has never moved (a weight, mostly) is read where it is; one that
has moved is copied into a place of its own before each replay. Results are copied out, since the next replay writes
over them; those that share memory with each other or with an input do so after as before.

What is written to is written in its place. An input whose memory is written to is never copied: there is a graph for
each place at which such inputs have lain in two calls (a cache of keys and values that is made anew for each text).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any, TypeAlias

import torch

Place: TypeAlias = tuple[int, ...]  # a device, a stream of it, and the addresses of the inputs that are written to
GRAPHS = 8  # that are kept of one function: those that were used last


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
        self._pools: dict[tuple[int, ...], Any] = {}

    def place(self, tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
        """The device and its current stream; None where nothing can be recorded now."""
        device = tensors[0].device if tensors else torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_current_stream_capturing() or device.index != torch.cuda.current_device():
            return None
        return device.index, torch.cuda.current_stream(device).cuda_stream

    def record(self, function: Callable[[], Any], place: Place, *, rehearse: bool) -> tuple[Callable[[], None], Any]:
        """A function that replays the kernels of this one, and its results, whose memory each replay writes to.

        It may `rehearse` what writes to nothing: what is made at a first call, such as a library's workspace, is not
        recorded then. What writes has been called once, on the stream of the caller.
        """
        if rehearse:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                function()
            torch.cuda.current_stream().wait_stream(side)
        pool = self._pools.setdefault(place[:2], torch.cuda.graph_pool_handle())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            results = function()
        return graph.replay, results


CUDA = Cuda()
_LOCK = RLock()  # copying in, replaying and copying out are one


@dataclass(eq=False)
class Captured:
    """In place of a function of constants and tensors: its graph, for each stream that it is called on.

    `held` are the tensors, by number, whose memory the function writes to, and `written` has one of them for each
    write. They are where they were recorded, or there is another graph.
    """

    function: Callable[..., Any]
    constants: int
    held: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    recordings: dict[Place, Recording] = field(default_factory=dict)
    seen: dict[Place, list[int]] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)
    failed: str = ""

    def __call__(self, *args: Any) -> Any:
        """Run the function's kernels and return its results."""
        tensors = args[self.constants :]
        stream = None if self.failed else CUDA.place(tensors)
        if stream is None:
            return self.function(*args)
        place = (*stream, *(tensors[number].data_ptr() for number in self.held))
        with _LOCK, torch.no_grad():
            if place not in self.seen:
                keep_last(self.seen, place, [tensor.data_ptr() for tensor in tensors])
                return self.function(*args)
            recording = self._recording(place, args)
            return self.function(*args) if recording is None else self._replay(recording, tensors)

    def _replay(self, recording: Recording, tensors: Sequence[torch.Tensor]) -> Any:
        """The results of a replay, behind which autograd knows what was written."""
        results = recording(tensors)
        for number in self.written:
            torch.autograd.graph.increment_version(tensors[number])
        return results

    def _recording(self, place: Place, args: tuple[Any, ...]) -> Recording | None:
        """The graph, made anew where an input has moved for the first time; None where there can be none."""
        tensors = args[self.constants :]
        recording = self.recordings.pop(place, None)
        moved = recording.moved(tensors) if recording else self._moved_since(place, tensors)
        if recording is None or moved:
            self.moving |= moved
            recording = self._recorded(place, args)
        if recording is not None:
            keep_last(self.recordings, place, recording)
        return recording

    def _recorded(self, place: Place, args: tuple[Any, ...]) -> Recording | None:
        try:
            return self._record(place, args)
        except RuntimeError as error:
            self.failed = str(error).partition("\n")[0]
            warnings.warn(f"a CUDA graph could not be recorded: {self.failed}", RuntimeWarning, stacklevel=4)
            return None

    def _moved_since(self, place: Place, tensors: Sequence[torch.Tensor]) -> set[int]:
        pairs = zip(self.seen[place], tensors, strict=True)
        return {number for number, (address, tensor) in enumerate(pairs) if tensor.data_ptr() != address}

    def _record(self, place: Place, args: tuple[Any, ...]) -> Recording:
        tensors = args[self.constants :]
        buffers = {number: _like(tensors[number]) for number in sorted(self.moving)}
        used = [buffers.get(number, tensor) for number, tensor in enumerate(tensors)]
        run = partial(self.function, *args[: self.constants], *used)
        replay, results = CUDA.record(run, place, rehearse=not self.written)
        memories, views = described(results, used)
        addresses = {number: one.data_ptr() for number, one in enumerate(tensors) if number not in buffers}
        return Recording(replay, addresses, buffers, memories, views)


def captured(
    function: Callable[..., Any], constants: int, held: tuple[int, ...] = (), written: tuple[int, ...] = ()
) -> Captured:
    """The function as a graph; its first parameters are constants, the others tensors; it returns a tuple.

    It writes to the memory of the tensors with the numbers `held`, once for each number in `written`.
    """
    return Captured(function, constants, held, written)


def keep_last(kept: dict[Place, Any], place: Place, value: Any) -> None:
    """Put a value behind those that are kept, of which the first goes where there are too many."""
    kept[place] = value
    if len(kept) > GRAPHS:
        del kept[next(iter(kept))]


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
