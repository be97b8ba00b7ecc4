"""The nearest folder above a path that exists."""

from __future__ import annotations

from pathlib import Path


def nearest_existing(path: Path) -> Path:
    """Return the path itself if it exists, else its nearest parent that exists."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())
