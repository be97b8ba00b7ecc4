"""Errors of exit status 7: out of memory, disk or time."""

from __future__ import annotations

from thunder_core.errors.tree import ResourceError


class OutOfDisk(ResourceError):
    """The disk filled up while an artifact was being written, or a file would have been larger than `ulimit -f` allows.

    The unfinished copy was removed. A full disk under the cache of compiled kernels is no error: they are not kept.

    Weights that are to be included are weighed against the room on the disk before anything is written.

    `thunder cache prune` makes room where the cache is what fills it.
    """

    code = "TH0701"


class OutOfMemory(ResourceError):
    """The model, its optimized twin or a call of one of them does not fit into the device's memory.

    The memory of each stage is planned from the config before anything is loaded, against what is free, control groups
    and limits of the process (`prlimit --as`) included; `--dry-run` prints the plan. What a call takes is estimated
    again on tensors without data before any of it is allocated. What cannot be estimated is refused by the system,
    within a limit on the private memory of the process, so that the kernel does not kill it.
    """

    code = "TH0702"
