"""Writes docs/versions.md from docs/versions.json: `python -m docs.versions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.versions.record import Record, read_records
from thunder_core.foundation.tested_versions import TESTED, text_of
from thunder_core.frontend.interpreter.versions import SUPPORTED_VERSIONS

# The releases of PyTorch for which pip resolved the wheel, and the Triton that each needs:
# `pip install --dry-run --ignore-installed --constraint FILE thunder_optimize-*.whl`, where FILE says `torch==2.14.1`.
RESOLVED = {"2.11.0": "3.6.0", "2.12.0": "3.7.0", "2.13.0": "3.7.1", "2.14.1": "3.8.0", "2.15.0": "3.9.0"}
PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Versions

<!-- Written by `make docs` from docs/versions.json and thunder_core/foundation/tested_versions.py. -->

| package | releases that the tests were run on |
|---|---|
"""
TEXT = """
`pip` also installs Thunder with newer releases of these packages. A newer release of PyTorch is refused at the first
use (`jit`, `compile`, `load` and the commands), with [TH0306](errors.md), because Thunder uses
[private names](private_names.md) of PyTorch. `THUNDER_ALLOW_UNTESTED_TORCH=1` in the environment, or
`--allow-untested-torch` after a command, lifts the refusal. `thunder doctor` shows the installed releases, and whether
they were tested. Newer releases of Triton and transformers are not refused. Python 3.14 is refused, because the tests
were never run there with PyTorch ([the interpreter](interpreter.md#python-314)).

## Installation

On 2026-11-26, pip 26.3 resolved the wheel on Linux with Python 3.11 and each of these releases of PyTorch (`pip install
--dry-run --ignore-installed` with a constraint). All were CUDA builds, and transformers was 5.24.0.

| PyTorch | Triton |
|---|---|
{resolved}

## Test runs

Each row is the latest run of these tests on these versions. The tests run on a CPU. To add a row for the current
environment, run `python -m tests.versions.record FOLDER...` and `make docs`. A row that names files ran only
these files. No failure in the rows below is a wrong result:

- PyTorch 2.11: its Inductor compiles one kernel more for an artifact that a test counts. Training with a learned bias
  of attention, and linear layers of a vector and of a transposed batch, are traced again for other sizes. Attention
  with a dimension of no elements divides by zero in eager PyTorch, which ends the process. In `tests/acquire`, tests
  expect what eager PyTorch does since a later release: its `scan` has wrong gradients for a captured tensor and ignores
  `dim` for the outputs, `autograd.Function.apply` takes no keyword arguments, `wrap_triton` takes no kernels of the
  interpreter of Triton, and a `BlockMask` is not cropped.
- PyTorch 2.14: `tests/planted` did not finish within its 300 seconds on a busy machine, and has no row. In
  `tests/models`, two checkpoints need the package accelerate, and torchao prints a deprecation of PyTorch.
  In a forked child of a process that ran a compiled backward, the CUDA build of PyTorch refuses `backward`
  (`tests/test_fork.py`). Ctrl-C is not detected in a run that a shell starts in the background. The default mode of
  `associative_scan` has a result on CPUs there, and is refused in programs.
- PyTorch 2.15: average pooling with `ceil_mode` and symbolic sizes runs in eager PyTorch instead of Inductor, and
  a line for a token with a static cache makes a tensor of the size of the cache.
- transformers 5.17: generating a token with a static cache copies the keys in two tests of
  `tests/generation/test_static_cache.py`.

| date | Python | PyTorch | Triton | transformers | tests | passed | failed | skipped |
|---|---|---|---|---|---|---|---|---|
"""


def render(records: Sequence[Record] | None = None) -> str:
    """Return the whole page."""
    runs = sorted(read_records() if records is None else records, key=order, reverse=True)
    resolved = "\n".join(f"| {torch} | {triton} |" for torch, triton in RESOLVED.items())
    return (
        "\n".join([HEAD + "\n".join(version_rows()), TEXT.format(resolved=resolved) + "\n".join(map(row, runs))]) + "\n"
    )


def version_rows() -> Iterator[str]:
    """Yield a row for each package."""
    yield f"| Python | {text_of(SUPPORTED_VERSIONS[0])} to {text_of(SUPPORTED_VERSIONS[-1])} |"
    yield from (f"| {package} | {releases} |" for package, releases in TESTED.items())


def order(record: Record) -> tuple[object, ...]:
    """Return the sort key of a row: the release of PyTorch, then the date."""
    return tuple(map(int, record.torch.split(".")[:2])), record.date, record.python, record.tests


def row(record: Record) -> str:
    """Return the row of a record."""
    folders = ", ".join(f"`{name}`" for name in record.tests.split())
    versions = f"{record.python} | {record.torch} | {record.triton} | {record.transformers}"
    return f"| {record.date} | {versions} | {folders} | {record.passed} | {record.failed} | {record.skipped} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
