"""The requirements for a measurement, checked before the measurement begins."""

from __future__ import annotations

from thunder_cli.results.bench_output import BenchOutput
from thunder_core.workflow.benchmark.baseline import fraction_of, read_suite
from thunder_core.workflow.benchmark.gate import check_speedup_factor
from thunder_core.workflow.benchmark.suite import BenchmarkSuite


def earlier_result(output: BenchOutput, runs: int) -> BenchmarkSuite | None:
    """Return the baseline, or None; raise an error if `runs` rounds are too few to show the required speed-up."""
    if output.require_speedup is not None:
        check_speedup_factor(output.require_speedup, runs)
    allowed_loss(output)
    return None if output.baseline is None else read_suite(output.baseline)


def allowed_loss(output: BenchOutput) -> float:
    """Return the allowed slowdown as a fraction: the baseline's speed-up divided by the current one, minus 1."""
    return fraction_of(output.fail_above or "5%")
