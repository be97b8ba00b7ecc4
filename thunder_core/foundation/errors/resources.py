"""Errors of exit status 7: out of memory, disk or time."""

from __future__ import annotations

from thunder_core.foundation.errors.tree import ResourceError


class OutOfDisk(ResourceError):
    """The disk is full, or a file would be larger than `ulimit -f` allows.

    Thunder has removed the unfinished artifact. If an artifact includes weights, Thunder compares their size with the
    free space before it writes anything. A full disk of the kernel cache is not an error: Thunder then does not cache
    the kernels. If the cache fills the disk, `thunder cache prune` frees space.
    """

    code = "TH0701"


class OutOfMemory(ResourceError):
    """The model, the optimized model, or a call of one of them does not fit into the device's memory.

    Before Thunder loads anything, it plans the memory of each stage from the config, and compares the plan with the
    free memory. `--dry-run` prints the plan. Control groups and process limits (`prlimit --as`) count as limits of the
    free memory. Before a call, Thunder estimates the memory of the call again, with fake tensors. Some memory cannot be
    estimated. Thunder therefore limits the private memory of the process, so that this error is raised before the
    kernel of the operating system kills the process.
    """

    code = "TH0702"


class RankFailed(ResourceError):
    """Another rank of the command failed or ended, so all ranks end.

    Under `torchrun`, all ranks run the same command. The first rank reports the error of the rank that failed. No
    artifact is written.
    """

    code = "TH0703"


class SearchOutOfTime(ResourceError):
    """The time of a search ended before any candidate but eager PyTorch was measured.

    Each candidate is loaded, compiled, validated and measured in its own process, which takes at least ten seconds. The
    measurements are stored: the same command continues the search.
    """

    code = "TH0704"
    report: object = None  # the SearchReport, for code that catches the error
