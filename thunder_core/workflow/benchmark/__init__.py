"""Benchmarks: the speed of candidates compared in one process, and compared with an earlier measurement.

The names below are imported when they are first used. Measurements are plain data, which can be read without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_core.foundation import plugins

if TYPE_CHECKING:
    from thunder_core.workflow.benchmark.baseline import (
        Comparison,
        check_against_baseline,
        compare_with_baseline,
        fraction_of,
        read_suite,
        write_suite,
    )
    from thunder_core.workflow.benchmark.gate import check_speedup_factor, require_speedup
    from thunder_core.workflow.benchmark.generation import GeneratedTokens, GenerationBenchmark
    from thunder_core.workflow.benchmark.machine import machine_name, processor_name, threads_in_use
    from thunder_core.workflow.benchmark.measurement import measure
    from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport, Candidate, Interval
    from thunder_core.workflow.benchmark.suite import BenchmarkSuite
    from thunder_core.workflow.benchmark.suite_comparison import CandidateComparison, contrast_suites
    from thunder_core.workflow.benchmark.verdict import Verdict

HOMES = {
    "BenchmarkReport": "report",
    "BenchmarkSuite": "suite",
    "BenchmarkCandidate": "report",
    "Candidate": "report",
    "Comparison": "baseline",
    "CandidateComparison": "suite_comparison",
    "GeneratedTokens": "generation",
    "GenerationBenchmark": "generation",
    "Interval": "report",
    "Verdict": "verdict",
    "check_against_baseline": "baseline",
    "check_speedup_factor": "gate",
    "compare_with_baseline": "baseline",
    "contrast_suites": "suite_comparison",
    "fraction_of": "baseline",
    "machine_name": "machine",
    "measure": "measurement",
    "processor_name": "machine",
    "read_suite": "baseline",
    "require_speedup": "gate",
    "threads_in_use": "machine",
    "write_suite": "baseline",
}

__all__ = [
    "BenchmarkCandidate",
    "BenchmarkReport",
    "BenchmarkSuite",
    "Candidate",
    "CandidateComparison",
    "Comparison",
    "GeneratedTokens",
    "GenerationBenchmark",
    "Interval",
    "Verdict",
    "check_against_baseline",
    "check_speedup_factor",
    "compare_with_baseline",
    "contrast_suites",
    "fraction_of",
    "machine_name",
    "measure",
    "processor_name",
    "read_suite",
    "require_speedup",
    "threads_in_use",
    "write_suite",
]

__getattr__ = plugins.lazy_face(__name__, HOMES)
