"""The rules of a benchmark: against whom, and at which sizes; checked before PyTorch is imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from thunder_core.errors import BadOption
from thunder_core.models.data_file import require_data_file
from thunder_core.pipeline.request_checks import require_least
from thunder_core.plugins import unknown_name

OURS = "thunder"
# Whom Thunder may be measured against, and who that is; `bench.py` says how each is made.
AGAINST: dict[str, str] = {"eager": "eager PyTorch", "inductor": "torch.compile"}


@dataclass(frozen=True)
class BenchRequest:
    """What to measure: contenders by name, batches and sequence lengths, how often, with how many threads, and on
    which real inputs, if not on drawn ones.
    """

    against: tuple[str, ...] = ("eager",)
    batches: tuple[int, ...] = (1,)
    seqs: tuple[int | None, ...] = (None,)
    runs: int = 30
    warmup: int = 5
    threads: int | None = None
    input: Path | None = None


def check_bench_request(bench_request: BenchRequest, subjects: int = 1) -> None:
    """Raise UnknownName for a contender that does not exist, and BadOption for sizes that cannot be.

    Two subjects are compared with each other, and need no contender.
    """
    for name in bench_request.against:
        if name not in AGAINST:
            raise unknown_name("contender", name, AGAINST)
    if not bench_request.against and subjects == 1:
        raise BadOption("--against names nobody", fix=f"name one of: {', '.join(AGAINST)}")
    for option, values, least in (
        ("--batch", bench_request.batches, 1),
        ("--seq", bench_request.seqs, 1),
        ("--runs", (bench_request.runs,), 2),
        ("--warmup", (bench_request.warmup,), 0),
    ):
        for value in values:
            require_least(option, value, least)
    require_threads(bench_request.threads)
    require_data_file("--input", bench_request.input)


def require_threads(count: int | None) -> None:
    """Raise `BadOption` for fewer threads than one, or more than the machine has processors."""
    processors = os.cpu_count() or 1
    if count is not None and not 1 <= count <= processors:
        raise BadOption(
            f"--threads is {count}", fix=f"give --threads a number of 1 to {processors}, the processors here"
        )
