"""The name of this machine's processor, which measurements record."""

from __future__ import annotations

import platform
from pathlib import Path

PROCESSOR_FILE = Path("/proc/cpuinfo")


def processor_name() -> str:
    """Return the processor name in `/proc/cpuinfo`, or from Python's `platform` if that file has no name."""
    if PROCESSOR_FILE.exists():
        lines = (line.partition(":") for line in PROCESSOR_FILE.read_text().splitlines())
        names = {key.strip(): value.strip() for key, _, value in lines}
        if names.get("model name"):
            return names["model name"]
    return platform.processor() or platform.machine()
