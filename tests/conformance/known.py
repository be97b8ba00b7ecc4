"""The tests that are known to fail in the interpreter, each with its reason."""

import sys
from pathlib import Path


def known_failures(version: tuple[int, int] = sys.version_info[:2]) -> dict[str, str]:
    """Return the known failures of a Python version and their reasons, from `known_3_11.txt` and similar files."""
    path = Path(__file__).with_name(f"known_{version[0]}_{version[1]}.txt")
    if not path.exists():
        return {}
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {name.strip(): reason.strip() for name, _, reason in (line.partition(":  ") for line in lines)}
