"""Examine the types of shelves in parallel processes with limits, keep each result at once, and write the page.

Results are stored in a file of lines, so that an interrupted run can continue. The shelves are the model
types of transformers, and models of other libraries, such as `timm:resnet10t`. A shelf whose package is missing is
skipped.

Usage: python -m tests.zoo [TYPE ...] [--shelf timm ...] [--jobs 2] [--seconds 240] [--memory 6] [--again|--failed]
       [--page docs/models.md]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import signal
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.zoo.configs import model_types
from tests.zoo.examine import COMPARISONS, EAGER, RUNNING, examine_within
from tests.zoo.page import COLUMNS, page
from tests.zoo.shelves import PACKAGES, SUBJECTS, TRANSFORMERS, is_installed, shelf_of, types_of

RESULTS = Path("benchmarks/results/models.jsonl")
PATIENCE = 4  # the limit of wall-clock seconds of a process, as a multiple of its limit of CPU seconds
# A server imports the modules that all examinations need, and forks a process for each examination.
PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = "tests.zoo.warm"
PROCESSES.set_forkserver_preload([PRELOADED])


def examine_type(model_type: str, seconds: int, memory: float, names: Collection[str] = COMPARISONS) -> dict[str, Any]:
    """Examine a type in a new process; return its row, with a reason for the comparison that did not end."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=examine_within, args=(model_type, seconds, memory, theirs, names))
    process.start()
    theirs.close()
    row: dict[str, Any] = {"type": model_type, "shelf": shelf_of(model_type), RUNNING: "eager"}
    until = time.monotonic() + PATIENCE * seconds
    with contextlib.suppress(EOFError):
        while ours.poll(max(0.0, until - time.monotonic())):
            row = ours.recv()
    process.kill()
    process.join()
    unfinished = row.pop(RUNNING, None)
    if unfinished is not None:
        is_late = time.monotonic() >= until or process.exitcode in (-signal.SIGKILL, -signal.SIGXCPU)
        row[unfinished] = f"more than {seconds} seconds" if is_late else f"ends with status {process.exitcode}"
    return row


def read_results(results: Path) -> dict[str, dict[str, Any]]:
    """Return the results of earlier runs, by type."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {row["type"]: row for row in map(json.loads, lines)}


def is_right(row: dict[str, Any]) -> bool:
    """Whether eager PyTorch runs a type, and every comparison is right."""
    return "eager" not in row and all(str(row.get(name, EAGER)).startswith(("right", EAGER)) for name in COLUMNS)


def run(model_types: Iterable[str], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Examine the types without a result, and with `failed` also the types with a wrong result; return all results."""
    options.results.parent.mkdir(parents=True, exist_ok=True)
    rows = {} if options.again else read_results(options.results)
    waiting = [name for name in model_types if name not in rows or (options.failed and not is_right(rows[name]))]
    with ThreadPoolExecutor(options.jobs) as pool, options.results.open("w" if options.again else "a") as file:
        futures = [pool.submit(examine_type, name, options.seconds, options.memory) for name in waiting]
        for number, future in enumerate(as_completed(futures), 1):
            row = future.result()
            rows[row["type"]] = row
            print(json.dumps(row), file=file, flush=True)
            result = row.get("eager") or "; ".join(f"{key} {row[key]}" for key in COLUMNS if key in row)
            print(f"{number}/{len(waiting)} {row['type']}: {result}", flush=True)
    return rows


def types_on(shelf: str) -> list[str]:
    """Return the types of a shelf; if the shelf's package is missing, print a note and return none."""
    if not is_installed(shelf):
        print(f"{shelf}: skipped, because the package {PACKAGES[shelf]} is not installed", flush=True)
        return []
    return model_types() if shelf == TRANSFORMERS else types_of(shelf)


def main() -> None:
    """Examine the types, and write the page if requested."""
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*")
    parser.add_argument("--shelf", action="append", choices=list(SUBJECTS), help="default: transformers")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=240)
    parser.add_argument("--memory", type=float, default=8)
    parser.add_argument("--again", action="store_true", help="discard all results")
    parser.add_argument("--failed", action="store_true", help="examine types with a wrong result again")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    shelves = () if options.types else options.shelf or (TRANSFORMERS,)
    PROCESSES.set_forkserver_preload([PRELOADED, *(PACKAGES[shelf] for shelf in shelves)])
    rows = run(options.types or [name for shelf in shelves for name in types_on(shelf)], options)
    if options.page is not None:
        ordered = [rows[name] for name in sorted(rows)]
        there = [shelf for shelf in SUBJECTS if is_installed(shelf)]
        versions = {shelf: version(PACKAGES[shelf]) for shelf in there}
        open_counts = {shelf: len(set(types_on(shelf)) - rows.keys()) for shelf in there}
        options.page.write_text(page(ordered, versions, options.seconds, options.memory, open_counts))


if __name__ == "__main__":
    main()
