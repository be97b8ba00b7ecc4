"""Writes docs/versions.md from docs/versions.json: `python -m docs.versions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.versions.record import Record, read_records
from thunder_core.foundation.tested_versions import TESTED, text_of
from thunder_core.frontend.interpreter.versions import SUPPORTED

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Versions

<!-- Written by `make docs` from docs/versions.json and thunder_core/foundation/tested_versions.py. -->

| package | releases that the tests were run on |
|---|---|
"""
TEXT = """
`pip` installs Thunder beside newer releases too. A newer release of PyTorch is refused at the first use (`jit`,
`compile`, `load` and the commands), with [TH0306](errors.md), because Thunder uses [private names](private_names.md)
of PyTorch. `THUNDER_ALLOW_UNTESTED_TORCH=1` in the environment, or `--allow-untested-torch` behind a command, lifts the
refusal. `thunder doctor` shows the installed releases, and which of them were never tested. Newer releases of Triton
and transformers are not refused.

## Test runs

Each row is the latest run of these tests on these versions. The tests run on a CPU. To add a row for the present
environment, run `python -m tests.versions.record FOLDER...` and `make docs`.

| date | Python | PyTorch | Triton | transformers | tests | passed | failed | skipped |
|---|---|---|---|---|---|---|---|---|
"""


def render(records: Sequence[Record] | None = None) -> str:
    """The whole page."""
    runs = sorted(read_records() if records is None else records, key=order, reverse=True)
    return "\n".join([HEAD + "\n".join(tested()), TEXT + "\n".join(map(row, runs))]) + "\n"


def tested() -> Iterator[str]:
    """A row for each package."""
    yield f"| Python | {text_of(SUPPORTED[0])} to {text_of(SUPPORTED[-1])} |"
    yield from (f"| {package} | {releases} |" for package, releases in TESTED.items())


def order(record: Record) -> tuple[object, ...]:
    """The order of the rows: by the release of PyTorch and by the date."""
    return tuple(map(int, record.torch.split(".")[:2])), record.date, record.python, record.tests


def row(record: Record) -> str:
    """The row of a record."""
    folders = ", ".join(f"`{name}`" for name in record.tests.split())
    versions = f"{record.python} | {record.torch} | {record.triton} | {record.transformers}"
    return f"| {record.date} | {versions} | {folders} | {record.passed} | {record.failed} | {record.skipped} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
