"""A guard that has the system refuse memory which is not there, so that the kernel need not kill the process for it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from thunder_core.workflow.models.memory.free_memory import free_memory
from thunder_core.workflow.models.memory.memory_limits import used_data

MARGIN = 0.03  # of the free memory, which is left to the page cache and to compilers


@contextmanager
def guarded_memory(mapped: int = 0) -> Iterator[None]:
    """Limit the private memory of this process to what is free now and so many bytes of files that are mapped.

    Linux gives out more memory than there is, and kills a process that uses it. Within the limit an allocation fails
    instead, which is an error that says so. A process with a GPU is left alone: its driver reserves addresses.
    """
    free, used = free_memory(torch.device("cpu")), used_data()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if free is None or used is None or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield
        return
    most = used + int((1 - MARGIN) * free) + mapped
    bounds = [most, *(one for one in (soft, hard) if one != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
