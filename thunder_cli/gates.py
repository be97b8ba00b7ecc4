"""What a measurement is held against, found before anything is measured."""

from __future__ import annotations

from thunder_cli.wishes import Wishes
from thunder_core.benchmark.baseline import fraction_of, read_suite
from thunder_core.benchmark.gate import check_gate
from thunder_core.benchmark.report import BenchmarkSuite


def earlier_result(wishes: Wishes, runs: int) -> BenchmarkSuite | None:
    """The baseline, if there is one; raises for what could not be told of a measurement of so many rounds."""
    if wishes.require_speedup is not None:
        check_gate(wishes.require_speedup, runs)
    allowed(wishes)
    return None if wishes.baseline is None else read_suite(wishes.baseline)


def allowed(wishes: Wishes) -> float:
    """How much of a speed-up may be lost."""
    return fraction_of(wishes.fail_above or "5%")
