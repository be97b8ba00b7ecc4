"""The version of the package, and the folder of its files."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.2.0"

FOLDER = str(Path(__file__).parents[1])


def package_of(module: object) -> str:
    """Return the top-level package in the name of a module, which may be None."""
    return str(module).partition(".")[0]
