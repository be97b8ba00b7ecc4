"""The memory that the limits of a process and its control groups leave it, which may be far less than its machine has.

Linux describes them in `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`. The memory of files that
nobody uses is given back as soon as some is asked for, and counts as free.
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
UNLIMITED = 1 << 60  # bytes; the first version says that there is no limit by nearly the largest number of 63 bits


@dataclass(frozen=True)
class Controller:
    """The files of one version of control groups: where they lie, the limit, what is used, and the reclaimable part."""

    folder: str
    limit: str
    used: str
    reclaimable: str


UNIFIED = Controller("", "memory.max", "memory.current", "inactive_file")
CONTROLLERS = {
    "": UNIFIED,
    "memory": Controller("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


# The limits of `prlimit` on the addresses of a process, and what counts against each (proc_pid_status(5)).
PROCESS_LIMITS = {resource.RLIMIT_AS: "VmSize:", resource.RLIMIT_DATA: "VmData:"}
NOTHING = 64 << 20  # bytes that a limit leaves, with which nothing can be imported
STATUS = Path("/proc/self/status")
# What the system says, in the words of C, Rust, the loader of libraries, PyTorch and its allocator for the CPU.
REFUSALS = (
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


def machines_memory() -> int | None:
    """Bytes that the machine has left, whoever may take them; None where it does not say."""
    lines = (line.split() for line in _lines(MEMORY_FILE))
    return next((int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:"), None)


def limited_memory() -> int | None:
    """Bytes that this process may still take by its limits and its control groups; None where there are none."""
    left = (left for controller, group in groups() if (left := left_in(group, controller)) is not None)
    return min((*left, *process_limits()), default=None)


def process_limits() -> Iterator[int]:
    """Bytes that each limit on the addresses of this process leaves it."""
    for kind, name in PROCESS_LIMITS.items():
        most, _ = resource.getrlimit(kind)
        used = status_bytes(name)
        if most != resource.RLIM_INFINITY and used is not None:
            yield max(0, most - used)


def used_data() -> int | None:
    """Bytes of the private memory of this process, used or not yet; None where that is not known."""
    return status_bytes(PROCESS_LIMITS[resource.RLIMIT_DATA])


def private_memory() -> int | None:
    """Bytes of memory that this process holds for itself, without mapped files; None where that is not known."""
    return status_bytes("RssAnon:")


def status_bytes(name: str) -> int | None:
    """A field of the status of this process in bytes."""
    lines = (line.split() for line in _lines(STATUS))
    return next((1024 * int(parts[1]) for parts in lines if parts and parts[0] == name), None)


def is_refused_memory(error: BaseException) -> bool:
    """Whether an error says that memory was asked for which is not there; PyTorch's own class is not asked about."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if isinstance(error, SystemError | ImportError) and min(process_limits(), default=NOTHING) < NOTHING:
        return True  # where there is no memory for an exception, CPython says that one was not set
    said = isinstance(error, RuntimeError | ImportError | OSError) or type(error).__name__ == "SafetensorError"
    return said and any(refusal in str(error) for refusal in REFUSALS)


def groups() -> Iterator[tuple[Controller, Path]]:
    """The folders of the groups that the process is in, each with those around it.

    In a container its own group may be the root of what is mounted, so that its path leads nowhere there.
    """
    for line in _lines(MEMBERSHIPS):
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in CONTROLLERS.keys() & {*names.split(",")}:
            controller = CONTROLLERS[name]
            root = GROUPS / controller.folder
            inner = root / path.strip("/")
            yield from ((controller, place) for place in (inner, *inner.parents) if place.is_relative_to(root))


def left_in(group: Path, controller: Controller) -> int | None:
    """Bytes that a group leaves; None where it sets no limit, or is not there."""
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
