"""The requirements of `--baseline`, `--require-speedup` and `--fail-above`, checked before the measurement."""

from __future__ import annotations

from thunder_cli.results.bench_output import BenchOutput
from thunder_core.workflow.benchmark.baseline import fraction_of, read_suite
from thunder_core.workflow.benchmark.gate import check_speedup_factor
from thunder_core.workflow.benchmark.suite import BenchmarkSuite


def earlier_result(output: BenchOutput, runs: int) -> BenchmarkSuite | None:
    """Return the baseline, or None; raise an error if `runs` rounds are too few to show the required speed-up."""
    if output.require_speedup is not None:
        check_speedup_factor(output.require_speedup, runs)
    allowed_slowdown(output)
    return None if output.baseline is None else read_suite(output.baseline)


def allowed_slowdown(output: BenchOutput) -> float:
    """Return the slowdown that `--fail-above` allows, as a fraction: 0.05 for `5%`."""
    return fraction_of(output.fail_above or "5%")
