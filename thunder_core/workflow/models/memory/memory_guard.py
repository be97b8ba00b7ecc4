"""Limit the memory of this process, so that an allocation fails before Linux kills the process."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from thunder_core.foundation.memory_limits import used_data
from thunder_core.workflow.models.memory.free_memory import free_memory

MARGIN = 0.03  # the share of free memory that is reserved for the page cache and compilers


@contextmanager
def limit_private_memory(mapped: int = 0) -> Iterator[None]:
    """Limit the private memory of this process to the currently free memory, plus `mapped` bytes of mapped files.

    Linux overcommits memory, and kills a process that uses too much. With a limit, an allocation raises an error
    instead. A process that uses a GPU gets no limit, because the GPU driver reserves address space.
    """
    free, used = free_memory(torch.device("cpu")), used_data()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if free is None or used is None or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield
        return
    most = used + int((1 - MARGIN) * free) + mapped
    bounds = [most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
