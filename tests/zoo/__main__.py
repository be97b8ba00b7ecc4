"""Examine model types in parallel processes with limits, keep each result at once, and write the page.

Results are kept in a file of lines, so that an interrupted run goes on where it stopped.

Usage: python -m tests.zoo [TYPE ...] [--jobs 2] [--seconds 120] [--memory 6] [--again] [--page docs/models.md]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import transformers

from tests.zoo.configs import model_types
from tests.zoo.page import page

RESULTS = Path("build/zoo.jsonl")
PATIENCE = 4  # times the seconds of CPU that a process may have, in seconds of the clock


def examined(model_type: str, seconds: int, memory: float) -> dict[str, Any]:
    """The result of a process that examines a type, or why it gave none."""
    limits = f"ulimit -t {seconds}; exec {sys.executable} -m tests.zoo.examine {model_type} {memory}"
    try:
        done = subprocess.run(
            ["bash", "-c", limits], capture_output=True, text=True, check=False, timeout=PATIENCE * seconds
        )
    except subprocess.TimeoutExpired:
        return {"type": model_type, "eager": f"more than {seconds} seconds"}
    printed = done.stdout.strip().splitlines()
    if done.returncode == 0 and printed:
        result: dict[str, Any] = json.loads(printed[-1])
        return result
    last = (done.stderr.strip().splitlines() or [""])[-1]
    reason = f"more than {seconds} seconds" if done.returncode in (-9, -24, 137, 152) else f"ends: {last:.120}"
    return {"type": model_type, "eager": reason}


def kept(results: Path) -> dict[str, dict[str, Any]]:
    """The results of earlier runs, by type."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {row["type"]: row for row in map(json.loads, lines)}


def run(model_types: Iterable[str], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Examine the types that have no result yet; return all results."""
    options.results.parent.mkdir(parents=True, exist_ok=True)
    rows = {} if options.again else kept(options.results)
    waiting = [model_type for model_type in model_types if model_type not in rows]
    with ThreadPoolExecutor(options.jobs) as pool, options.results.open("w" if options.again else "a") as file:
        futures = [pool.submit(examined, one, options.seconds, options.memory) for one in waiting]
        for number, future in enumerate(as_completed(futures), 1):
            row = future.result()
            rows[row["type"]] = row
            print(json.dumps(row), file=file, flush=True)
            told = row.get("eager") or "; ".join(f"{key} {row[key]}" for key in ("inference", "training") if key in row)
            print(f"{number}/{len(waiting)} {row['type']}: {told}", flush=True)
    return rows


def main() -> None:
    """Examine, and write the page where one is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--memory", type=float, default=8)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    rows = run(options.types or model_types(), options)
    if options.page is not None:
        ordered = [rows[name] for name in sorted(rows)]
        options.page.write_text(page(ordered, transformers.__version__, options.seconds, options.memory))


if __name__ == "__main__":
    main()
