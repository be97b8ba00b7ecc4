"""How fast candidates are against each other in one process, and against an earlier measurement."""

from thunder_core.benchmark.baseline import (
    Comparison,
    check_against_baseline,
    compare_with_baseline,
    fraction_of,
    read_suite,
    write_suite,
)
from thunder_core.benchmark.machine import machine_name, processor_name
from thunder_core.benchmark.measure import measure
from thunder_core.benchmark.report import BenchmarkReport, BenchmarkSuite, Candidate, Interval

__all__ = [
    "BenchmarkReport",
    "BenchmarkSuite",
    "Candidate",
    "Comparison",
    "Interval",
    "check_against_baseline",
    "compare_with_baseline",
    "fraction_of",
    "machine_name",
    "measure",
    "processor_name",
    "read_suite",
    "write_suite",
]
