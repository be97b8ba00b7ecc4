"""The name of this machine's processor, by which measurements are told apart."""

from __future__ import annotations

import platform
from pathlib import Path

PROCESSOR_FILE = Path("/proc/cpuinfo")


def processor_name() -> str:
    """The name of the processor as its maker writes it, or what Python knows of it."""
    if PROCESSOR_FILE.exists():
        lines = (line.partition(":") for line in PROCESSOR_FILE.read_text().splitlines())
        names = {key.strip(): value.strip() for key, _, value in lines}
        if names.get("model name"):
            return names["model name"]
    return platform.processor() or platform.machine()
