"""Convert the results of commands to checks for continuous integration."""

from __future__ import annotations

from functools import partial

from thunder_cli.ci.ci_report import CiReport
from thunder_cli.views.quantity import count_noun
from thunder_core.workflow.benchmark import BenchmarkReport, BenchmarkSuite
from thunder_core.workflow.benchmark.gate import size_prefix
from thunder_core.workflow.pipeline.debug import Diagnosis
from thunder_core.workflow.report import Report, render_benchmark_markdown, render_markdown
from thunder_core.workflow.validation.report import GenerationReport, ValidationReport


def note_report(checks: CiReport, report: Report) -> None:
    """Add checks for the outputs, the prompts and the speed in a report; the summary is the report in Markdown."""
    for validation in (report.validation, report.generation):
        if validation is not None:
            note_validation(checks, validation)
    if report.speed is not None:
        _note_speed(checks, report.speed)
    checks.summarize = partial(render_markdown, report)


def note_validation(checks: CiReport, validation: ValidationReport | GenerationReport) -> None:
    """Add a check for each output that was compared with eager PyTorch; for generation, one for each prompt size."""
    if isinstance(validation, GenerationReport):
        compared = [(f"generation ({prompt.size})", prompt.failures) for prompt in validation.prompts]
    else:
        compared = [(output.name, output.failures) for output in validation.outputs]
    for name, failures in compared:
        checks.note(f"{name}: matches eager PyTorch", failures)


def note_suite(checks: CiReport, suite: BenchmarkSuite) -> None:
    """Add a check for each measurement of a benchmark; the summary has the benchmark's tables in Markdown."""
    for report in suite.reports:
        _note_speed(checks, report)
    checks.summarize = partial(render_benchmark_markdown, suite)


def note_diagnosis(checks: CiReport, diagnosis: Diagnosis) -> None:
    """Add a failed check for each wrong line, for the first that computes NaN, and the first that computes infinity.

    Without such lines, add one passed check.
    """
    for fault in diagnosis.faults:
        checks.note(fault.line, [f"{fault.difference}; {fault.reason}"])
    for line in diagnosis.non_finite:
        checks.note(line.line, [f"the first {line.kind} in {line.run_by}: {count_noun(line.count, 'element')}"])
    if diagnosis.is_clean:
        checks.note(f"no wrong line in {diagnosis.subject}")


def _note_speed(checks: CiReport, report: BenchmarkReport) -> None:
    """Add a passed check for each candidate except the first, the baseline. The check's name contains the verdict."""
    for candidate in report.candidates[1:]:
        checks.note(f"{size_prefix(report)}{candidate.name} is {report.verdict_in_words(candidate)}")
