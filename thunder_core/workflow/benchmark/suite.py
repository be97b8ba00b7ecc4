"""The file of a measurement: one report for each configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from thunder_core.workflow.benchmark.generation import GENERATION, GenerationBenchmark
from thunder_core.workflow.benchmark.interval import BenchmarkFacts
from thunder_core.workflow.benchmark.report import BenchmarkReport

SCHEMA_VERSION: Literal[1] = 1


def kind_of(report: object) -> str:
    """Return the kind of a report, given as plain data or as an object: only reports on `generate` have `texts`."""
    has_texts = "texts" in report if isinstance(report, dict) else isinstance(report, GenerationBenchmark)
    return GENERATION if has_texts else "call"


AnyReport = Annotated[
    Annotated[GenerationBenchmark, Tag(GENERATION)] | Annotated[BenchmarkReport, Tag("call")], Discriminator(kind_of)
]


class BenchmarkSuite(BenchmarkFacts):
    """The file that `thunder bench --json` writes and `--baseline` reads: one report for each configuration."""

    schema_version: Literal[1] = SCHEMA_VERSION
    thunder: str
    reports: tuple[AnyReport, ...] = Field(min_length=1)

    @property
    def measured(self) -> tuple[BenchmarkReport, ...]:
        """All reports, each followed by the reports of the parts of its call."""
        return tuple(measured for report in self.reports for measured in (report, *report.parts))

    @property
    def generations(self) -> tuple[GenerationBenchmark, ...]:
        """The reports on `generate`."""
        return tuple(report for report in self.reports if isinstance(report, GenerationBenchmark))
