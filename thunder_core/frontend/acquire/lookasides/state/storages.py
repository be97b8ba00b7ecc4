"""Storages that a program makes from bytes: they have data and a device, as in eager PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.torch_facts.modes import without_recording


@lookaside(torch.UntypedStorage.from_buffer)
def from_buffer(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
    """Make a storage from bytes, which are guarded. In the fake mode, the storage would have no device."""
    for buffer in (*args, *kwargs.values()):
        run.outside.expand_whole(buffer)
    with without_recording():
        return torch.UntypedStorage.from_buffer(*args, **kwargs)
