"""The package itself: its version, and the folder that its files lie in."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

FOLDER = str(Path(__file__).parents[1])
