"""Estimate the memory of a call of a model with tensors without data, before anything is allocated."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.foundation.errors import OutOfMemory
from thunder_core.workflow.models.inputs.input_tensors import map_tensors, tensors_in
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.models.inputs.size_words import sizes_in_words
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.memory.free_memory import free_memory
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session.model_state import restore_model_state
from thunder_core.workflow.report.number_format import size as bytes_in_words
from thunder_core.workflow.validation.gradients import preserve_gradients
from thunder_core.workflow.validation.precision import reference_bytes, widest_affordable
from thunder_core.workflow.validation.preserved_state import preserve_buffers

# No published model needs more than this multiple of its inputs' bytes: a token of 16 bytes becomes at most half a
# megabyte of logits. If the inputs times this factor fit into memory, the call is not estimated further.
MAX_BYTES_PER_INPUT_BYTE = 1 << 17
SEQUENCE_BYTES, PIXEL_BYTES = 32, 4  # the minimum for a random token, or a random pixel


@dataclass(frozen=True)
class MemoryNeed:
    """The bytes of a call in addition to the weights: at its peak, and after it has returned.

    `streamed` is the peak if each gradient is dropped as soon as it is computed.
    """

    peak: int
    kept: int
    streamed: int = 0


def require_memory(
    loaded: LoadedModel,
    purpose: Purpose,
    *,
    seed: int,
    runs: bool = True,
    validate: bool = False,
    **sizes: int,
) -> None:
    """Raise `OutOfMemory` if a call with inputs of these sizes needs more memory than the model's device has free.

    If `runs` is False, the call runs on another device, so only its inputs are counted. If `validate` is set, the
    reference in higher precision is counted, too. The memory of a model that reads values of tensors cannot be
    estimated; if it does not fit, the allocator later raises a less specific error.
    """
    device = loaded.model.device
    free = free_memory(device)
    if free is None:
        return
    size = InputSize(**sizes)
    batch = size.batch
    what = f"a call with batch {batch} and {sizes_in_words(loaded.config, size)}"
    require_room(what, least_bytes(size), free, device, "use a smaller --seq")
    sample = purpose.inputs(loaded, **size._replace(batch=1).stated, seed=seed)
    input_bytes = batch * sum(tensor.nbytes for _, tensor in tensors_in(sample))
    if are_small(input_bytes, free):
        return
    need = need_of(loaded, purpose, sample, batch) if runs else None
    if need is None:
        require_room(f"the input of {what}", input_bytes, free, device, "use a smaller --batch or --seq")
        return
    require_room(what, input_bytes + need.peak, free, device, smaller_size(batch, input_bytes + need.peak, free))
    if validate:
        reference = widest_affordable(loaded.model, train=purpose.train)
        wider = max(1, reference.itemsize // loaded.model.dtype.itemsize)
        weights = reference_bytes(loaded.model, reference, train=purpose.train)
        total = input_bytes + weights + 2 * need.kept + wider * need.peak
        validation = f"the validation of {what}, against {str(reference).removeprefix('torch.')},"
        require_room(validation, total, free, device, smaller_size(batch, total, free))


def least_bytes(size: InputSize) -> int:
    """Return the minimum number of bytes for one random sample."""
    tokens, pixels = size.seq + (size.cache or 0), (size.height or 1) * (size.width or 1)
    return tokens * SEQUENCE_BYTES + pixels * PIXEL_BYTES


def are_small(inputs: int, free: int | None) -> bool:
    """Whether a call with this number of bytes of inputs fits into the free bytes for any model."""
    return free is None or inputs * MAX_BYTES_PER_INPUT_BYTE <= free


def require_room(what: str, needed: int, free: int, device: torch.device, smaller: str) -> None:
    """Raise `OutOfMemory` if more bytes are needed than are free."""
    if needed > free:
        raise OutOfMemory(
            f"{what} needs about {bytes_in_words(needed)} at its peak, but {device} has {bytes_in_words(free)} free; "
            "nothing was allocated",
            fix=f"{smaller}, a narrower --dtype, or a machine with more memory",
        )


def smaller_size(batch: int, needed: int, free: int) -> str:
    """Advise a batch size that may fit, because memory is proportional to the batch, or a shorter sequence."""
    most = batch * free // needed
    return f"use --batch {most}, which may fit" if most else "use a smaller --seq"


def need_of(loaded: LoadedModel, purpose: Purpose, sample: Inputs, batch: int) -> MemoryNeed | None:
    """Return the memory of a call with `batch` samples of a sample's size; None if it cannot be estimated.

    The result is a lower bound: rounding to blocks and the memory of kernels are not counted.
    """
    model = loaded.model
    with (
        restore_model_state(model),
        preserve_buffers(model),
        preserve_gradients(model),
        torch.random.fork_rng(devices=[]),
    ):
        try:
            with FakeTensorMode(allow_non_fake_inputs=True), _saved_by_name(), _StorageCounter() as weighing:
                inputs = {
                    name: map_tensors(value, partial(_without_data, batch, model.device))
                    for name, value in sample.items()
                }
                input_bytes = weighing.live_bytes
                returned = purpose.call(model, model)(**inputs)
                need = MemoryNeed(peak=weighing.peak - input_bytes, kept=weighing.live_bytes - input_bytes)
                del returned
        except Exception:
            return None
    return need


def _without_data(batch: int, device: torch.device, sample: torch.Tensor) -> torch.Tensor:
    """Return a tensor like a sample's for `batch` samples; under a fake tensor mode, the tensor has no data."""
    return torch.empty((batch, *sample.shape[1:]), dtype=sample.dtype, device=device)


@contextmanager
def _saved_by_name() -> Iterator[None]:
    """While the block runs, autograd saves tensors as Python objects, so that their deletion can be observed."""
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


class _StorageCounter(TorchDispatchMode):
    """Counts the bytes of the storages that operations allocate, until no tensor uses them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = self.peak = 0
        self.tensors: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_view = any(returned.alias_info for returned in func._schema.returns)
        for tensor in _pytree.tree_leaves(result):
            if isinstance(tensor, FakeTensor):
                self._add(tensor, is_view=is_view)
        return result

    def _add(self, tensor: torch.Tensor, *, is_view: bool) -> None:
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if not self.tensors[key]:
            if is_view:  # a view of a weight, which was allocated before
                return
            self.live_bytes += nbytes
            self.peak = max(self.peak, self.live_bytes)
        self.tensors[key] += 1
        weakref.finalize(tensor, self._drop, key, nbytes).atexit = False

    def _drop(self, key: int, nbytes: int) -> None:
        self.tensors[key] -= 1
        if not self.tensors[key]:
            self.live_bytes -= nbytes
