"""Storages and swapped tensors. A storage made from bytes has data and a device while tracing; others have no data."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any, NoReturn

import torch

from thunder_core.frontend.acquire.lookaside_table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.modes import without_recording

SIZES = frozenset({"nbytes", "size"})


@lookaside(torch.UntypedStorage.from_buffer)
def from_buffer(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
    """Make a storage from bytes, which are guarded. In the fake mode, the storage would have no device."""
    for buffer in (*args, *kwargs.values()):
        run.outside.expand_whole(buffer)
    with without_recording():
        return torch.UntypedStorage.from_buffer(*args, **kwargs)


@lookaside(*(getattr(torch._C, name) for name in ("_overlaps", "_is_alias_of", "_data_address", "_storage_address")))
def read_address(run: TracedRun, /, *_: object) -> NoReturn:
    """Leave the program to eager PyTorch: it reads or compares addresses, and tensors have no memory at tracing."""
    run.leave_to_eager(
        "the program reads or compares addresses of memory",
        "compare storages: `a.untyped_storage() is b.untyped_storage()`; under fully_shard, compile the forward: "
        "`module.forward = thunder_core.jit(module.forward)`",
    )


@lookaside(torch.utils.swap_tensors, torch._C._swap_tensor_impl)
def swap_tensors(run: TracedRun, /, *_: object) -> NoReturn:
    """Leave the program to eager PyTorch: two names would exchange their tensors in the trace, without an operation."""
    run.leave_to_eager(
        "the program swaps two tensors (torch.utils.swap_tensors)", "assign the data: `x.data, y.data = y.data, x.data`"
    )


def method_of_storage(run: TracedRun, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leave the program to eager PyTorch if it reads a storage's address, and guard a storage's size that it reads.

    Return `NOT_TAKEN`.
    """
    is_of_storage = type(method) is BuiltinMethodType and isinstance(method.__self__, torch._C.StorageBase)
    if is_of_storage and method.__name__ == "data_ptr":
        read_address(run, *args, **kwargs)
    if is_of_storage and method.__name__ in SIZES:
        guard_size(run, method.__self__)
    return NOT_TAKEN


def guard_size(run: TracedRun, storage: Any) -> None:
    """Guard the number of bytes of a storage, if tensors from outside have the storage."""
    tensors = run.recorder.tensors
    with without_recording():
        for real, _ in tensors.inputs.values():
            if real.layout is torch.strided and memory_of(tensors.fake(real)) == storage._cdata:
                run.outside.guard_fact(real, "untyped_storage().nbytes()", real.untyped_storage().nbytes())


@lookaside_of_each(torch.UntypedStorage, torch._C.StorageBase.__new__)
def make_storage(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Leave the program to eager PyTorch if it makes a storage from another one, whose memory is missing at tracing.

    Otherwise, C++ code would read the missing memory, and crash the process.
    """
    if any(isinstance(value, torch._C.StorageBase) for value in args):
        run.leave_to_eager("the program makes a storage of another storage", "use the storage itself")
    return NOT_TAKEN
