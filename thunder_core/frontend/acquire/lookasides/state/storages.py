"""Storages: those made from bytes have data and a device, as in eager PyTorch; others have no data while tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.frontend.acquire.lookasides.table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.torch_facts.modes import without_recording


@lookaside(torch.UntypedStorage.from_buffer)
def from_buffer(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
    """Make a storage from bytes, which are guarded. In the fake mode, the storage would have no device."""
    for buffer in (*args, *kwargs.values()):
        run.outside.expand_whole(buffer)
    with without_recording():
        return torch.UntypedStorage.from_buffer(*args, **kwargs)


@lookaside_of_each(torch.UntypedStorage, torch._C.StorageBase.__new__)
def make_storage(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Leave a storage that is made of another storage to eager PyTorch, which would read missing memory and crash."""
    if any(isinstance(value, torch._C.StorageBase) for value in args):
        run.leave_to_eager("the program makes a storage of another storage", "use the storage itself")
    return NOT_TAKEN
