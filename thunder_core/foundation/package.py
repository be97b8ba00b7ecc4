"""The version of the package, and the folder of its files."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.2.0"

FOLDER = str(Path(__file__).parents[1])
