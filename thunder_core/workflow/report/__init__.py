"""The report of one run: plain data with a schema, and its pages for people.

The names below are imported when they are first used, because reading a report does not need PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_core.foundation import plugins

if TYPE_CHECKING:
    from thunder_core.workflow.report.contents import (
        ComparisonFacts,
        ConstraintFacts,
        Degraded,
        Environment,
        ExecutorComparison,
        ExecutorRefusal,
        ExecutorShare,
        Gpu,
        KernelChoice,
        MemoryPoint,
        ModelFacts,
        OperationCount,
        RecipeFacts,
        Refused,
        Report,
        SkippedPart,
        StageTime,
        TraceSummary,
    )
    from thunder_core.workflow.report.csv_table import render_csv
    from thunder_core.workflow.report.environment import describe_environment
    from thunder_core.workflow.report.render import (
        PAGES,
        render_html,
        render_markdown,
        render_search,
        render_search_markdown,
        write_report,
    )
    from thunder_core.workflow.report.search import SearchBounds, SearchCandidate, SearchReport
    from thunder_core.workflow.report.speedups import render_benchmark, render_benchmark_markdown

HOMES = {
    "PAGES": "render",
    "ComparisonFacts": "contents",
    "ConstraintFacts": "contents",
    "Degraded": "contents",
    "Environment": "contents",
    "ExecutorComparison": "contents",
    "ExecutorShare": "contents",
    "Gpu": "contents",
    "KernelChoice": "contents",
    "MemoryPoint": "contents",
    "ModelFacts": "contents",
    "OperationCount": "contents",
    "RecipeFacts": "contents",
    "SkippedPart": "contents",
    "ExecutorRefusal": "contents",
    "Refused": "contents",
    "Report": "contents",
    "StageTime": "contents",
    "TraceSummary": "contents",
    "describe_environment": "environment",
    "render_benchmark": "speedups",
    "render_benchmark_markdown": "speedups",
    "render_csv": "csv_table",
    "render_html": "render",
    "render_markdown": "render",
    "render_search": "render",
    "render_search_markdown": "render",
    "SearchBounds": "search",
    "SearchCandidate": "search",
    "SearchReport": "search",
    "write_report": "render",
}

__all__ = [
    "PAGES",
    "ComparisonFacts",
    "ConstraintFacts",
    "Degraded",
    "Environment",
    "ExecutorComparison",
    "ExecutorRefusal",
    "ExecutorShare",
    "Gpu",
    "KernelChoice",
    "MemoryPoint",
    "ModelFacts",
    "OperationCount",
    "RecipeFacts",
    "Refused",
    "Report",
    "SearchBounds",
    "SearchCandidate",
    "SearchReport",
    "SkippedPart",
    "StageTime",
    "TraceSummary",
    "describe_environment",
    "render_benchmark",
    "render_benchmark_markdown",
    "render_csv",
    "render_html",
    "render_markdown",
    "render_search",
    "render_search_markdown",
    "write_report",
]

__getattr__ = plugins.lazy_face(__name__, HOMES)
