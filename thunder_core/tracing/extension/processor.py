"""The processor of the machine: its name, the size of its last cache, and the widest vectors that a user allows."""

from __future__ import annotations

import os
import platform
from pathlib import Path

PROCESSOR_FILE = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # a folder for each cache of the first core
CAPABILITY = "ATEN_CPU_CAPABILITY"  # PyTorch's environment variable
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def processor_name() -> str:
    """Return the processor name in `/proc/cpuinfo`, or from Python's `platform` if that file has no name."""
    if PROCESSOR_FILE.exists():
        lines = (line.partition(":") for line in PROCESSOR_FILE.read_text().splitlines())
        names = {key.strip(): value.strip() for key, _, value in lines}
        if names.get("model name"):
            return names["model name"]
    return platform.processor() or platform.machine()


def allowed_vectors() -> str:
    """Return the widest vectors that PyTorch may use, such as `avx2`; empty if the environment does not limit them."""
    return os.environ.get(CAPABILITY, "")


def last_cache_bytes() -> int:
    """Return the bytes of the largest cache of the first core; 0 if the system does not report its caches."""
    try:
        sizes = [path.read_text(encoding="ascii").strip() for path in CACHES.glob("index*/size")]
        return max((int(size.rstrip("KMG")) * UNITS.get(size[-1:], 1) for size in sizes), default=0)
    except (OSError, ValueError):
        return 0
