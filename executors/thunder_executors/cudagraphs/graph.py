"""A function of tensors as a CUDA graph: captured at its second call, replayed from then on.

In a validation, the first call runs the function without a graph, undoes its writes, and then captures and replays the
graph.

A graph reads and writes fixed addresses. There are four kinds of inputs:

- `static` inputs are parameters, buffers and caches, which have the same address in most calls. The graph reads them in
  place. If the address of a static input has changed, the graph is captured again. A static input whose address changes
  at each call is copied (`address_changes.py`).
- `held` inputs are static inputs whose memory the function writes to. There is one graph for each set of their
  addresses, because a KV cache is allocated again for another batch.
- All other inputs are copied into buffers of the graph before each replay.
- `saved` inputs are results that another graph has lent. They are read in place, and there is one graph for each set of
  their addresses. If one of them is not in lent memory, the function runs without a graph.

Results are copied out after each replay, because the next replay overwrites them. A result that is a view of an input,
or shares memory with another result, is rebuilt as such a view. Results that only a backward reads are `lent`: they
stay in the memory of the graph, which is not replayed while a tensor uses them; the function then runs without a graph
(`loans.py`).

A program with symbolic sizes has one graph for each set of sizes. Graphs are dropped, those used least recently first,
if all graphs of a GPU occupy too many bytes (`graph_memory.py`), or if a function has more than `GRAPHS`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import RLock, get_ident
from typing import Any, TypeAlias

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as preserve_versions

from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.library.examination import is_examined, is_validated
from thunder_core.tracing.library.extent import extent
from thunder_executors.cudagraphs.address_changes import EARLY_CHANGES, FEW_REPLAYS, AddressChanges
from thunder_executors.cudagraphs.graph_memory import USES, GraphMemory
from thunder_executors.cudagraphs.loans import Loan, is_lent, may_lend
from thunder_executors.cudagraphs.recording import Cuda

Key: TypeAlias = tuple[Any, ...]  # a device, a stream of it, addresses of held inputs, sizes, addresses of saved inputs
ALIGNMENT = 16  # bytes: kernels are compiled for addresses that are multiples of this, and for others
GRAPHS = 16  # the number of graphs kept for a function: the most recently used


@dataclass(frozen=True)
class View:
    """A result to rebuild after a replay: a view of input `base` or, if `is_new_memory`, of copied memory `base`.

    `offset` is in bytes from the start of that input or memory.
    """

    base: int
    is_new_memory: bool
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor that a graph reads in place of an input; the input's elements are copied into `memory`.

    If elements of the input share memory, the memory is copied as one flat range (`is_flat`), each element once.
    """

    tensor: torch.Tensor
    memory: torch.Tensor
    is_flat: bool

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Buffer:
        """Return a buffer with this tensor's shape, stride, dtype, device and values."""
        is_flat = overlaps_itself(tensor)
        if is_flat:
            memory = torch.empty(extent(tensor.shape, tensor.stride()), dtype=tensor.dtype, device=tensor.device)
            buffer = cls(memory.as_strided(tensor.shape, tensor.stride()), memory, is_flat)
        else:
            memory = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            buffer = cls(memory, memory, is_flat)
        memory.copy_(buffer.elements_of(tensor))
        return buffer

    def elements_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements of an input, in the shape of `memory`."""
        return tensor.as_strided(self.memory.shape, self.memory.stride()) if self.is_flat else tensor


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor may share memory, as in an expanded tensor or in overlapping windows."""
    dimensions = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    span = 1
    for stride, size in dimensions:
        if stride < span:
            return True
        span = stride * size
    return False


@dataclass(eq=False)
class Recording:
    """A graph with its memory: static inputs by their addresses, and `buffers` for the other inputs.

    `memories` are the memories of the results, and `loans` the memories of lent results, by number. `pool_nbytes` is
    the size of the graph's own pool, if it has one.
    """

    replay: Callable[[], None]
    addresses: dict[int, int]
    buffers: dict[int, Buffer]
    memories: tuple[torch.Tensor, ...]
    views: tuple[View, ...]
    loans: dict[int, Loan] = field(default_factory=dict)
    pool_nbytes: int = 0
    replays: int = 0
    last_use: int = 0

    @cached_property
    def nbytes(self) -> int:
        """The size of the graph's buffers and results, or of the buffers and the graph's own pool, in bytes."""
        results = sum(memory.nbytes for memory in self.memories)
        return max(results, self.pool_nbytes) + sum(buffer.memory.nbytes for buffer in self.buffers.values())

    @property
    def copied_nbytes(self) -> int:
        """The bytes of the results that are copied after each replay."""
        return sum(memory.nbytes for number, memory in enumerate(self.memories) if number not in self.loans)

    @property
    def is_in_use(self) -> bool:
        """Whether a tensor uses results in the graph's memory, which a replay would overwrite."""
        return any(loan.is_in_use for loan in self.loans.values())

    def changed_inputs(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Return the positions of the static inputs that are not at the addresses that the graph reads."""
        return [index for index, address in self.addresses.items() if tensors[index].data_ptr() != address]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Copy the inputs into the buffers, replay the graph, and return copies of its results; lend the lent ones."""
        self.replays += 1
        self.last_use = next(USES)
        if self.buffers:
            sources = [buffer.elements_of(tensors[index]) for index, buffer in self.buffers.items()]
            torch._foreach_copy_([buffer.memory for buffer in self.buffers.values()], sources)
        self.replay()
        loans = self.loans if self.loans and may_lend() else {}
        storages = [
            loans[number].lend() if number in loans else memory.clone().untyped_storage()
            for number, memory in enumerate(self.memories)
        ]
        return tuple(self._result(view, tensors, storages) for view in self.views)

    def _result(self, view: View, tensors: Sequence[torch.Tensor], storages: Sequence[Any]) -> torch.Tensor:
        if view.is_new_memory:
            empty = torch.empty(0, dtype=view.dtype, device=storages[view.base].device)
            return empty.set_(storages[view.base], view.offset // view.dtype.itemsize, view.size, view.stride)
        source = tensors[view.base]
        offset, rest = divmod(byte_offset(source) + view.offset, view.dtype.itemsize)
        if rest:
            raise RuntimeError(f"the storage offset of an input is not a multiple of the size of {view.dtype}")
        base = source if source.dtype == view.dtype else source.as_strided((0,), (1,), 0).view(view.dtype)
        return base.as_strided(view.size, view.stride, offset)


CUDA = Cuda()
GRAPH_MEMORY = GraphMemory()
_LOCK = RLock()  # held while inputs are copied, a graph is replayed, and results are copied


@dataclass(eq=False)
class CapturedFunction:
    """A callable that replaces a function of constants, sizes and tensors, with one graph for each key.

    `held` has the positions of the tensors that the function writes to, and `written` one of these positions for each
    write, as autograd counts writes. `static` has the positions of parameters, buffers and caches, and `saved` the
    positions of tensors that an earlier graph has lent. Positions count only tensors. `lent` has the positions of the
    results that only a backward reads. With `symbolic` sizes, integers are among the arguments, and shapes differ from
    call to call. If the capture for a key fails, calls with this key run without a graph; `failures` has the reasons.
    """

    function: Callable[..., Any]
    constants: int
    held: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    static: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    lent: tuple[int, ...] = ()
    symbolic: bool = False
    recordings: dict[Key, Recording] = field(default_factory=dict)
    seen: dict[Key, int] = field(default_factory=dict)  # the threads of the calls without a graph
    failures: dict[Key, str] = field(default_factory=dict)
    early_drops: dict[Key, int] = field(default_factory=dict)
    address_changes: AddressChanges = field(default_factory=AddressChanges)

    def __post_init__(self) -> None:
        with _LOCK:
            GRAPH_MEMORY.add(self)

    @property
    def failed(self) -> str:
        """The reason of the first failed capture; empty if none failed."""
        return next(iter(self.failures.values()), "")

    def __call__(self, *args: Any) -> Any:
        """Run the function's kernels and return its results."""
        if is_examined():
            return self.function(*args)
        values = args[self.constants :]
        tensors = tuple(value for value in values if isinstance(value, torch.Tensor)) if self.symbolic else values
        device_stream = CUDA.device_stream(tensors)
        if device_stream is None:
            return self.function(*args)
        key = (*device_stream, *(tensors[number].data_ptr() for number in self.held))
        if self.symbolic:
            key += tuple(sizes_of(values))
        key += tuple(tensors[number].data_ptr() for number in self.saved)
        with _LOCK, torch.no_grad():
            recording = self._graph_for(key, args, tensors)
            return self.function(*args) if recording is None else self._replay(recording, tensors)

    def _graph_for(self, key: Key, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> Recording | None:
        """Return the graph to replay; None if the function has to run without a graph."""
        first = self._without_saved(key)
        if key in self.failures or first in self.failures:
            return None
        is_first = first not in self.seen and key not in self.recordings
        if is_first:
            keep_last(self.seen, first, get_ident())
        if key not in self.recordings and not all(is_lent(tensors[number]) for number in self.saved):
            return None
        if is_first:
            if not is_validated():
                return None
            self._call_without_effect(args, tensors)
        recording = self._find_or_record(key, args, tensors)
        return None if recording is None or recording.is_in_use else recording

    def _without_saved(self, key: Key) -> Key:
        """Return a key without the addresses of saved inputs."""
        return key[: len(key) - len(self.saved)]

    def _call_without_effect(self, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> None:
        """Call the function, which loads its libraries, and undo its writes."""
        held = tuple(tensors[number] for number in self.held)
        with preserve_versions(held):
            copies = [tensor.clone() for tensor in held]
            self.function(*args)
            for tensor, copy in zip(held, copies, strict=True):
                tensor.copy_(copy)

    def _replay(self, recording: Recording, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Replay the graph, and increment the version of each written tensor for each write."""
        results = recording(tensors)
        for number in self.written:
            torch.autograd.graph.increment_version(tensors[number])
        return results

    def _find_or_record(self, key: Key, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> Recording | None:
        """Return the graph for a key, captured again if a static input's address has changed; None if capture fails."""
        recording = self.recordings.pop(key, None)
        if recording is not None and (changed := recording.changed_inputs(tensors)):
            self.address_changes.note_changes(changed, recording.replays, tensors)
            recording = None
        if self.address_changes.has_stable_input(tensors):
            self.recordings.clear()  # graphs of other sizes may copy the input, too
            recording = None
        is_new = recording is None
        if recording is None:
            recording = self._try_to_record(key, args, tensors)
        if recording is not None:
            keep_last(self.recordings, key, recording)
            if is_new:
                GRAPH_MEMORY.drop_until_fitting(key[0], recording, CUDA.memory_of(key[0]))
        return recording

    def drop(self, key: Key) -> None:
        """Drop a graph. The next call with its key runs without a graph, and the one after captures the graph again.

        A graph that is dropped several times after few replays is not captured again, because a capture takes longer
        than the launches of a few calls.
        """
        replays = self.recordings.pop(key).replays
        first = self._without_saved(key)
        self.seen.pop(first, None)
        early_drops = self.early_drops.pop(first, 0) + 1 if replays < FEW_REPLAYS else 0
        keep_last(self.early_drops, first, early_drops)
        if early_drops >= EARLY_CHANGES:
            keep_last(self.failures, first, "other graphs need the memory")

    def _try_to_record(self, key: Key, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> Recording | None:
        try:
            return self._record(key, args, tensors)
        except (RuntimeError, ThunderError) as error:
            reason = str(error).partition("\n")[0]
            keep_last(self.failures, key, reason)
            warnings.warn(f"a CUDA graph could not be recorded: {reason}", RuntimeWarning, stacklevel=4)
            return None

    def _record(self, key: Key, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> Recording:
        in_place = {*self.static, *self.held, *self.saved} - self.address_changes.copied.keys()
        buffers = {number: Buffer.like(tensor) for number, tensor in enumerate(tensors) if number not in in_place}
        used = [buffers[number].tensor if number in buffers else tensor for number, tensor in enumerate(tensors)]
        replacements = iter(used)
        values = [next(replacements) if isinstance(value, torch.Tensor) else value for value in args[self.constants :]]
        constants = args[: self.constants]
        changes = any(is_aligned(tensors[number]) != is_aligned(buffer.tensor) for number, buffer in buffers.items())
        if changes or self.seen.get(self._without_saved(key)) != get_ident():
            # Kernels may be compiled for the alignment, and libraries make handles for each thread.
            self._call_without_effect((*constants, *values), used)
        function = partial(self.function, *constants, *values)
        replay, results = CUDA.record(function, (key[0], key[1]), has_own_pool=bool(self.lent))
        memories, views = describe_results(results, used)
        addresses = {number: tensors[number].data_ptr() for number in sorted(in_place)}
        pool = CUDA.pool_nbytes(replay) if self.lent else 0
        recording = Recording(replay, addresses, buffers, memories, views, self._loans(memories, views), pool)
        GRAPH_MEMORY.require_fits(recording, CUDA.memory_of(key[0]))
        return recording

    def _loans(self, memories: Sequence[torch.Tensor], views: Sequence[View]) -> dict[int, Loan]:
        """Return loans for the memories whose results are all lent, by their numbers."""
        kept = {view.base for index, view in enumerate(views) if view.is_new_memory and index not in self.lent}
        return {number: Loan(memory) for number, memory in enumerate(memories) if number not in kept and memory.nbytes}


def captured(
    function: Callable[..., Any],
    constants: int,
    held: tuple[int, ...] = (),
    written: tuple[int, ...] = (),
    static: tuple[int, ...] = (),
    *,
    saved: tuple[int, ...] = (),
    lent: tuple[int, ...] = (),
    symbolic: bool = False,
) -> CapturedFunction:
    """Return a callable that runs a function as CUDA graphs. `CapturedFunction` describes the options.

    The first parameters of the function are `constants` constants, the others are tensors, and it returns a tuple.
    """
    return CapturedFunction(function, constants, held, written, static, saved, lent, symbolic)


def sizes_of(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the integers among values, and the shapes and strides of the tensors among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value.shape
            yield value.stride()
        else:
            yield value


def keep_last(entries: dict[Key, Any], key: Key, value: Any) -> None:
    """Append a value, and drop the oldest if there are more than `GRAPHS`."""
    entries[key] = value
    if len(entries) > GRAPHS:
        del entries[next(iter(entries))]


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether vectors can be loaded from a tensor's address."""
    return tensor.data_ptr() % ALIGNMENT == 0


def byte_offset(tensor: torch.Tensor) -> int:
    """Return the number of bytes before a tensor in its storage."""
    return int(tensor.storage_offset()) * tensor.itemsize


def describe_results(
    results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], tuple[View, ...]]:
    """Return the memories of results, as bytes, and each result as a view of a memory or of an input."""
    numbers = {tensor.untyped_storage().data_ptr(): number for number, tensor in enumerate(inputs)}
    memories: dict[int, torch.Tensor] = {}
    views = []
    for result in results:
        if result.is_conj() or result.is_neg():
            raise RuntimeError("a result is a conjugated or negated view")
        storage = result.untyped_storage()
        number = numbers.get(storage.data_ptr()) if storage.nbytes() else None
        is_new = number is None
        if number is None:
            memories.setdefault(storage.data_ptr(), bytes_of(storage))
            number = list(memories).index(storage.data_ptr())
        offset = byte_offset(result) - (0 if is_new else byte_offset(inputs[number]))
        views.append(View(number, is_new, tuple(result.shape), result.stride(), offset, result.dtype))
    return tuple(memories.values()), tuple(views)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
