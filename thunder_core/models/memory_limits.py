"""The memory that the control groups of a process leave it: a container may have far less than its machine.

Linux describes them in `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`. The memory of files that
nobody uses is given back as soon as some is asked for, and counts as free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


def limited_memory() -> int | None:
    """Bytes that this process may still take by the limits of its control groups; None where there are none."""
    return min(
        (left for controller, group in groups() if (left := left_in(group, controller)) is not None), default=None
    )


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
