"""The gates that a measurement is held against, found before anything is measured."""

from __future__ import annotations

from thunder_cli.results.bench_output import BenchOutput
from thunder_core.workflow.benchmark.baseline import fraction_of, read_suite
from thunder_core.workflow.benchmark.gate import check_gate
from thunder_core.workflow.benchmark.suite import BenchmarkSuite


def earlier_result(output: BenchOutput, runs: int) -> BenchmarkSuite | None:
    """The baseline, if there is one; raises for what could not be told of a measurement of so many rounds."""
    if output.require_speedup is not None:
        check_gate(output.require_speedup, runs)
    allowed_loss(output)
    return None if output.baseline is None else read_suite(output.baseline)


def allowed_loss(output: BenchOutput) -> float:
    """The part of a speed-up that may be lost."""
    return fraction_of(output.fail_above or "5%")
