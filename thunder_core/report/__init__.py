"""The report of one run: plain data with a schema, and its pages for people."""

from thunder_core.report.contents import (
    Degraded,
    ExecutorShare,
    MemoryPoint,
    ModelFacts,
    OperationCount,
    RecipeFacts,
    Refused,
    Report,
    StageTime,
    TraceSummary,
)
from thunder_core.report.environment import Environment, Gpu, describe_environment
from thunder_core.report.render import PAGES, render_html, render_markdown, write_report
from thunder_core.report.speedups import render_benchmark

__all__ = [
    "PAGES",
    "Degraded",
    "Environment",
    "ExecutorShare",
    "Gpu",
    "MemoryPoint",
    "ModelFacts",
    "OperationCount",
    "RecipeFacts",
    "Refused",
    "Report",
    "StageTime",
    "TraceSummary",
    "describe_environment",
    "render_benchmark",
    "render_html",
    "render_markdown",
    "write_report",
]
