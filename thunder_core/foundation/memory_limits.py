"""The memory that a process may still use: the machine, the limits of the process and its control groups bound it.

The Linux kernel documents control groups in `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`. The
memory of cached files that no process uses counts as free, because the kernel releases it on demand.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEMORY_FILE = Path("/proc/meminfo")
GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIPS = Path("/proc/self/cgroup")
# Bytes. A larger limit means that there is none: version 1 then reports a value near the largest 63-bit number.
UNLIMITED = 1 << 60


@dataclass(frozen=True)
class Controller:
    """The files of a version of control groups: its folder, and the files of the limit and of the used memory.

    `reclaimable` is the field of the memory that the kernel can release on demand.
    """

    folder: str
    limit: str
    used: str
    reclaimable: str


UNIFIED = Controller("", "memory.max", "memory.current", "inactive_file")
CONTROLLERS = {
    "": UNIFIED,
    "memory": Controller("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


# The limits of `prlimit` on the address space of a process, each with the field of the process status that counts
# against the limit (proc_pid_status(5)).
PROCESS_LIMITS = {resource.RLIMIT_AS: "VmSize:", resource.RLIMIT_DATA: "VmData:"}
MIN_IMPORT_BYTES = 64 << 20  # bytes; with less memory, imports fail
STATUS = Path("/proc/self/status")
# Error messages about memory of C, Rust, the dynamic loader, PyTorch and its CPU allocator.
REFUSAL_MESSAGES = (
    "can't allocate memory",
    "Cannot allocate memory",
    "cannot allocate memory",
    "failed to map segment from shared object",
    "Storage size calculation overflowed",
    "integer multiplication overflow",
    "unable to mmap",
    "can't start new thread",
    "std::bad_alloc",
)


def available_memory() -> int | None:
    """Return the bytes that this process may still use of the machine's memory, within its limits; None if unknown."""
    return min((size for size in (machines_memory(), limited_memory()) if size is not None), default=None)


def machines_memory() -> int | None:
    """Return the available bytes of the machine, or None if they are unknown."""
    lines = (line.split() for line in _lines(MEMORY_FILE))
    return next((int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:"), None)


def limited_memory() -> int | None:
    """Return the bytes that limits and control groups leave to this process, or None without limits."""
    group_bytes = (
        group_bytes for controller, group in groups() if (group_bytes := bytes_left(group, controller)) is not None
    )
    return min((*group_bytes, *process_limits()), default=None)


def process_limits() -> Iterator[int]:
    """Yield, for each limit on the address space of this process, the bytes that are left."""
    for kind, name in PROCESS_LIMITS.items():
        limit, _ = resource.getrlimit(kind)
        used = status_bytes(name)
        if limit != resource.RLIM_INFINITY and used is not None:
            yield max(0, limit - used)


def used_data() -> int | None:
    """Return the bytes of private memory of this process, including reserved addresses; None if unknown."""
    return status_bytes(PROCESS_LIMITS[resource.RLIMIT_DATA])


def private_memory() -> int | None:
    """Return the bytes of resident private memory of this process, without mapped files; None if unknown."""
    return status_bytes("RssAnon:")


def status_bytes(name: str) -> int | None:
    """Return a field of the status of this process in bytes, or None."""
    lines = (line.split() for line in _lines(STATUS))
    return next((1024 * int(parts[1]) for parts in lines if parts and parts[0] == name), None)


def is_refused_memory(error: BaseException) -> bool:
    """Whether an error means that memory could not be allocated; PyTorch's `OutOfMemoryError` is not checked."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if (
        isinstance(error, SystemError | ImportError)
        and min(process_limits(), default=MIN_IMPORT_BYTES) < MIN_IMPORT_BYTES
    ):
        return True  # if there is no memory for an exception object, CPython raises one of these errors
    may_be_refusal = (
        isinstance(error, RuntimeError | ImportError | OSError) or type(error).__name__ == "SafetensorError"
    )
    return may_be_refusal and any(refusal in str(error) for refusal in REFUSAL_MESSAGES)


def groups() -> Iterator[tuple[Controller, Path]]:
    """Yield the folders of the control groups of this process and of their parents.

    In a container, the group of the process may be mounted as the root, so the path of the group may not exist.
    """
    for line in _lines(MEMBERSHIPS):
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in CONTROLLERS.keys() & {*names.split(",")}:
            controller = CONTROLLERS[name]
            root = GROUPS / controller.folder
            inner = root / path.strip("/")
            yield from ((controller, folder) for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def bytes_left(group: Path, controller: Controller) -> int | None:
    """Return the bytes that a control group leaves, or None if it sets no limit or does not exist."""
    limit, used = (_number(group / name) for name in (controller.limit, controller.used))
    if limit is None or used is None or limit >= UNLIMITED:
        return None
    pairs = (line.split() for line in _lines(group / "memory.stat"))
    cached = next((int(pair[1]) for pair in pairs if pair[0] == controller.reclaimable), 0)
    return max(0, limit - max(0, used - cached))


def _number(file: Path) -> int | None:
    text = "".join(_lines(file))
    return int(text) if text.isdecimal() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
