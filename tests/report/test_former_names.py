"""Renamed classes of reports can still be imported by their former names."""

from __future__ import annotations

from thunder_core.workflow import benchmark, report


def test_former_names_of_reports_are_the_same_classes() -> None:
    assert benchmark.Candidate is benchmark.BenchmarkCandidate
    assert report.Refused is report.ExecutorRefusal
