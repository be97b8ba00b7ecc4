"""List the files that a reader has to open to follow a first call, or `thunder optimize`.

These are the files with a function that takes at least a share of the time, including the functions that it calls.

Usage: python -m benchmarks.followed [--share 0.02]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from typer.testing import CliRunner

import thunder_core
from thunder_cli.app import build_app

ROOT = Path(thunder_core.__file__).parents[1]
FOLDERS = ("thunder_core", "thunder_cli", "executors", "recipes")


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2 + 1


def first_call() -> None:
    """Call a compiled function for the first time."""
    thunder_core.jit(function)(torch.ones(3))


def optimize() -> None:
    """Optimize a small sample model by the command line."""
    with tempfile.TemporaryDirectory() as folder:
        result = CliRunner().invoke(build_app(), ["optimize", "--recipe", "hf-llama", "--out", f"{folder}/artifact"])
    if result.exit_code:
        raise SystemExit(result.output)


def costly_files(call: Callable[[], None], share: float) -> list[str]:
    """Return the project's files with a function that takes at least a share of the time of a call."""
    profile = cProfile.Profile()
    profile.runcall(call)
    stats = pstats.Stats(profile)
    enough = share * stats.total_tt  # type: ignore[attr-defined]
    paths = {Path(function[0]) for function, row in stats.stats.items() if row[3] >= enough}  # type: ignore[attr-defined]
    inside = (path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT))
    return sorted(str(path) for path in inside if path.parts[0] in FOLDERS)


def main() -> None:
    """Print the files of a first call and of `thunder optimize`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.02)
    share = parser.parse_args().share
    thunder_core.jit(lambda x: x.exp() - 1)(torch.ones(2))  # imports what a first call needs
    for name, call in (("a first call of thunder_core.jit", first_call), ("thunder optimize", optimize)):
        files = costly_files(call, share)
        print(f"{name}: {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
