"""The optimization of generation on several ranks, each of which has a part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from thunder_core.workflow.artifact.origin import TracedCalls
from thunder_core.workflow.benchmark.generation import GenerationBenchmark
from thunder_core.workflow.pipeline.generation.generation_coverage import GenerationCoverage
from thunder_core.workflow.pipeline.generation.generation_speed import Contender
from thunder_core.workflow.pipeline.generation_optimization import GenerationOptimization
from thunder_core.workflow.pipeline.ranks.rank import RanksGenerator
from thunder_core.workflow.pipeline.ranks_optimization import rank_of, require_equal_programs
from thunder_core.workflow.pipeline.request.bench_request import OURS
from thunder_core.workflow.pipeline.session.prepare import Prepared
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.validation.report import GenerationReport


@dataclass(eq=False)
class RanksGeneration(GenerationOptimization):
    """The optimization of generation on several ranks, which all get the same prompts.

    The reference for validation is eager generation by the model in one process, on the first rank.
    """

    def _compile_prepared(self, prepared: Prepared) -> Session:  # noqa: ARG002 - all ranks compile their own model
        rank = rank_of(self.session)
        rank.ask("compile", self.arguments)
        return replace(self.session, compile=lambda _: rank.compiled)

    def _validate(self) -> GenerationReport:
        """Compare only results, because a line of a program of several ranks cannot run on one rank alone."""
        self.clock.begin("validate")
        report = self._compare()
        GenerationCoverage(self.session, self.lengths).require_all_served()
        return report

    def _measure_all(self) -> tuple[GenerationBenchmark, ...]:
        """Return the measurements on all ranks, compared with PyTorch's own tensor parallelism."""
        rank = rank_of(self.session)
        rank.ask("wrap")
        reports = super()._measure_all()
        rank.ask("release")
        return reports

    def _contenders(self) -> Mapping[str, Contender]:
        rank = rank_of(self.session)
        return {name: Contender(RanksGenerator(rank, name)) for name in (rank.baseline.name, OURS)}

    def traced_calls(self) -> TracedCalls:
        """Return the facts for the artifact; raise `CannotReplay` if ranks have different programs."""
        require_equal_programs(rank_of(self.session).ask("digests"))
        return super().traced_calls()
