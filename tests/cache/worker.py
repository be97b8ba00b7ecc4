"""A process that uses a store: `python -m tests.cache.worker TASK FOLDER`."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from tests.cache.samples import key_of
from thunder_core.backend.cache import Store

REGIONS = 6
SIZE = 300_000  # bytes: large enough to kill the process in the middle of writing


def content(region: int) -> bytes:
    return random.Random(region).randbytes(SIZE)


def build_slowly(folder: Path, region: int) -> None:
    """Write two files a block at a time, and record the build in the log."""
    with (folder / "kernel.so").open("wb") as file:
        for start in range(0, SIZE, 30_000):
            file.write(content(region)[start : start + 30_000])
            file.flush()
            time.sleep(0.002)
    (folder / "wrapper.py").write_text(f"region = {region}\n")


def together(folder: Path) -> None:
    """Wait for the other processes, then build all regions. Each build is a line of the log."""
    store = Store(folder / "kernels")

    def build(place: Path, region: int) -> None:
        build_slowly(place, region)
        with (folder / "log").open("a") as log:
            log.write(f"{region}\n")

    ready(folder)
    while not (folder / "go").exists():
        time.sleep(0.001)
    for region in range(REGIONS):
        entry = store.get_or_build(key_of(str(region)), lambda place, region=region: build(place, region), f"r{region}")
        assert entry.read("kernel.so") == content(region)


def forever(folder: Path) -> None:
    """Build, read, damage, prune and clear entries at random until killed."""
    store = Store(folder / "kernels")
    draw = random.Random(os.getpid())
    ready(folder)
    while True:
        region = draw.randrange(REGIONS)
        store.get_or_build(key_of(str(region)), lambda place, region=region: build_slowly(place, region), f"r{region}")
        if draw.random() < 0.3:
            store.prune(max_bytes=draw.randrange(4) * SIZE)
        if draw.random() < 0.2:
            (store.folder / "entries" / key_of(str(region)).digest / "wrapper.py").unlink(missing_ok=True)
            store.get(key_of(str(region)))
        if draw.random() < 0.1:
            store.clear()


def ready(folder: Path) -> None:
    (folder / f"ready-{os.getpid()}").touch()


if __name__ == "__main__":
    {"together": together, "forever": forever}[sys.argv[1]](Path(sys.argv[2]))
