"""The list of known failures with reasons, and its disagreements with the findings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tests.coverage.finding import DIRECTIONS

LIST = Path(__file__).with_suffix(".toml")


def read_known_reasons() -> dict[tuple[str, str], str]:
    """Return the reason for each (direction, name) in the list."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["known"]
    return {
        (direction, name): entry["reason"]
        for entry in entries
        for direction in DIRECTIONS
        for name in entry.get(direction, ())
    }


def is_of_this_release() -> bool:
    """Whether the list was written for the installed release of PyTorch."""
    release: str = tomllib.loads(LIST.read_text(encoding="utf-8"))["torch"]
    return torch.__version__.startswith(f"{release}.")


def disagreements(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one line for each failure that is not listed, and for each listed entry that passes.

    With another release of PyTorch than that of the list, listed entries may pass.
    """
    return list(_disagreements(found))


def _disagreements(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    listed = read_known_reasons()
    for name, verdicts in found.items():
        for direction in DIRECTIONS:
            failure = verdicts.get(direction, {}).get("failure")
            if failure and (direction, name) not in listed:
                yield f"{name} {direction} fails and is not in {LIST.name}: {failure}"
            if not failure and (direction, name) in listed and is_of_this_release():
                yield f"{name} {direction} passes and is in {LIST.name}: take it out"
