"""Writes tests/long.txt, the list of slow tests and files, from measured times. `make test` runs one part of them.

A file is listed if one of its fixtures is slow: all of its tests run in the same part, so that other parts do not
set the fixture up.

    make test CASES=--junitxml=build/tests.xml
    python -m tests.long_tests build/tests.xml

A test that was in no run keeps its entry. Let the machine be quiet: the times decide.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from junitparser import JUnitXml, Properties, Skipped

from tests.conftest import FIXTURE_SECONDS, LONG, SECONDS, SETUP

ROOT = LONG.parent.parent
KEPT = 0.8  # a listed test is dropped below this share of the limit, so that noise does not change the list


def times(reports: list[Path]) -> dict[str, float]:
    """Return the longest time of each test without its fixtures, and of each file's fixtures, in seconds, by name."""
    longest: dict[str, float] = {}
    for name, seconds in (timed for report in reports for timed in times_in(report)):
        longest[name] = max(seconds, longest.get(name, 0.0))
    return longest


def times_in(report: Path) -> Iterator[tuple[str, float]]:
    """Yield the name and the time of each test that ran, and the file and the time of the test's fixtures.

    pytest writes the path with dots, followed by the classes.
    """
    for suite in JUnitXml.fromfile(str(report)):
        for case in suite:
            parts = case.classname.split(".")
            length = next((count for count in range(len(parts), 0, -1) if file_of(parts[:count]).exists()), 0)
            if length and not any(isinstance(result, Skipped) for result in case.result):
                file = file_of(parts[:length]).relative_to(ROOT).as_posix()
                properties = case.child(Properties) or ()  # type: ignore[no-untyped-call]
                setup = float(next((entry.value for entry in properties if entry.name == SETUP), 0.0))
                yield file, setup
                yield "::".join((file, *parts[length:], case.name)), case.time - setup


def file_of(parts: list[str]) -> Path:
    """Return the file of a module's dotted name."""
    return ROOT.joinpath(*parts).with_suffix(".py")


def long_tests(listed: set[str], measured: dict[str, float]) -> list[str]:
    """Return the names of the long tests and files in order."""
    kept = {name for name in listed if measured.get(name, limit(name)) >= KEPT * limit(name)}
    return sorted(kept | {name for name, seconds in measured.items() if seconds >= limit(name)})


def limit(name: str) -> float:
    """Return the time, in seconds, from which a test or a file is listed."""
    return SECONDS if "::" in name else FIXTURE_SECONDS


def main() -> None:
    """Rewrite the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, metavar="JUNIT")
    names = long_tests(set(LONG.read_text().splitlines()), times(parser.parse_args().reports))
    LONG.write_text("".join(f"{name}\n" for name in names))
    files = sum("::" not in name for name in names)
    print(
        f"{len(names) - files} tests take {SECONDS} seconds or more; fixtures of {files} files take {FIXTURE_SECONDS}"
    )


if __name__ == "__main__":
    main()
