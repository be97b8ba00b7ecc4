"""Runs tests in the present environment, and adds the counts to docs/versions.json, which docs/versions.md shows.

    python -m tests.versions.record tests/acquire tests/autodiff

An entry for the same versions and the same tests replaces the earlier entry. What follows `--` is given to pytest.
`--junit FILE` reads the counts of a run that has ended, which wrote FILE (`pytest --junitxml=FILE`).
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from junitparser import JUnitXml

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "versions.json"
PACKAGES = ("torch", "triton", "transformers")


@dataclass(frozen=True)
class Record:
    """The counts of a run of tests, with the versions that they ran on; a missing package has no version."""

    date: str
    python: str
    torch: str
    triton: str
    transformers: str
    tests: str
    passed: int
    failed: int
    skipped: int

    @property
    def key(self) -> tuple[str, ...]:
        """The part of a record that identifies later runs of the same tests."""
        return (self.python, self.torch, self.triton, self.transformers, self.tests)


def read_records(file: Path = RECORDS) -> list[Record]:
    """The records of a file, or none if the file does not exist."""
    return [Record(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))] if file.exists() else []


def write_records(records: Sequence[Record], file: Path = RECORDS) -> None:
    """Write records to a file, one entry a line."""
    lines = ",\n".join(json.dumps(asdict(record)) for record in records)
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def with_record(records: Sequence[Record], record: Record) -> list[Record]:
    """The records and a new one, which replaces an earlier record of the same key."""
    return [*(earlier for earlier in records if earlier.key != record.key), record]


def record_of(junit: Path, tests: Sequence[str]) -> Record:
    """The record of a run that wrote this JUnit file, in the present environment."""
    report = JUnitXml.fromfile(str(junit))
    failed = report.failures + report.errors
    passed = report.tests - failed - report.skipped
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    versions = [version_of(package) for package in PACKAGES]
    return Record(today, platform.python_version(), *versions, " ".join(tests), passed, failed, report.skipped)


def version_of(package: str) -> str:
    """The version of an installed package without its build, or a dash if the package is not installed."""
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "-"


def run_tests(tests: Sequence[str], options: Sequence[str], junit: Path) -> None:
    """Run tests with pytest, which writes its counts to a file. Raise `SystemExit` if pytest could not run."""
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={junit}", *options, *tests]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status not in (0, 1):  # 1: some tests failed
        raise SystemExit(status)


def main(arguments: Sequence[str] | None = None, file: Path = RECORDS) -> None:
    """Run the tests that the command line names, or read their counts, and add them to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="+", help="folders or files of tests")
    parser.add_argument("--junit", type=Path, help="the file that a run of these tests wrote")
    given = list(sys.argv[1:] if arguments is None else arguments)
    place = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:place])
    with tempfile.TemporaryDirectory() as folder:
        junit = asked.junit or Path(folder) / "junit.xml"
        if asked.junit is None:
            run_tests(asked.tests, given[place + 1 :], junit)
        record = record_of(junit, asked.tests)
    write_records(with_record(read_records(file), record), file)
    print(f"{record.passed} passed, {record.failed} failed, {record.skipped} skipped; run `make docs`")


if __name__ == "__main__":
    main()
