"""Writes tests/long.txt, the list of slow tests, from measured times. `make test` runs one part of them.

    make test CASES=--junitxml=build/tests.xml
    python -m tests.long_tests build/tests.xml

A test that was in no run keeps its entry. Let the machine be quiet: the times decide.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from junitparser import JUnitXml, Skipped

from tests.conftest import LONG, SECONDS

ROOT = LONG.parent.parent
KEPT = 0.8  # a listed test is dropped below this share of the limit, so that noise does not change the list


def times(reports: list[Path]) -> dict[str, float]:
    """Return the longest time of each test, in seconds, by its name in pytest."""
    longest: dict[str, float] = {}
    for name, seconds in (timed for report in reports for timed in times_in(report)):
        longest[name] = max(seconds, longest.get(name, 0.0))
    return longest


def times_in(report: Path) -> Iterator[tuple[str, float]]:
    """Yield the name and the time of each test that ran; pytest writes the path with dots, followed by the classes."""
    for suite in JUnitXml.fromfile(str(report)):
        for case in suite:
            parts = case.classname.split(".")
            length = next((count for count in range(len(parts), 0, -1) if file_of(parts[:count]).exists()), 0)
            if length and not any(isinstance(result, Skipped) for result in case.result):
                file = file_of(parts[:length]).relative_to(ROOT).as_posix()
                yield "::".join((file, *parts[length:], case.name)), case.time


def file_of(parts: list[str]) -> Path:
    """Return the file of a module's dotted name."""
    return ROOT.joinpath(*parts).with_suffix(".py")


def long_tests(listed: set[str], measured: dict[str, float]) -> list[str]:
    """Return the names of the long tests in order."""
    kept = {name for name in listed if measured.get(name, SECONDS) >= KEPT * SECONDS}
    return sorted(kept | {name for name, seconds in measured.items() if seconds >= SECONDS})


def main() -> None:
    """Rewrite the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, metavar="JUNIT")
    names = long_tests(set(LONG.read_text().splitlines()), times(parser.parse_args().reports))
    LONG.write_text("".join(f"{name}\n" for name in names))
    print(f"{len(names)} tests take {SECONDS} seconds or more")


if __name__ == "__main__":
    main()
