"""The optimization of generation on several ranks; each rank has a part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from thunder_core.backend.runtime.program import Program
from thunder_core.workflow.artifact.origin import TracedCalls
from thunder_core.workflow.benchmark.generation import GenerationBenchmark
from thunder_core.workflow.benchmark.rank_times import RankTimes
from thunder_core.workflow.pipeline.generation.generation_calls import inputs_of
from thunder_core.workflow.pipeline.generation.generation_coverage import GenerationCoverage
from thunder_core.workflow.pipeline.generation.generation_speed import Contender, greedy_options
from thunder_core.workflow.pipeline.generation_optimization import GenerationOptimization
from thunder_core.workflow.pipeline.ranks.rank import RanksGenerator
from thunder_core.workflow.pipeline.ranks_optimization import rank_of, require_equal_programs
from thunder_core.workflow.pipeline.request.bench_request import THUNDER
from thunder_core.workflow.pipeline.session.build_report import Results
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.validation.report import GenerationReport


@dataclass(eq=False)
class RanksGeneration(GenerationOptimization):
    """The steps that optimize generation on several ranks; all ranks get the same prompts.

    The reference for validation is eager generation by the model in one process, on the first rank.
    `rank_times` are the times of the call for the last token on each rank.
    """

    rank_times: tuple[RankTimes, ...] = ()

    def _compile_prepared(self, prepared: PreparedModel) -> Session:  # noqa: ARG002 - all ranks compile their own model
        rank = rank_of(self.session)
        rank.ask("compile", self.arguments)
        return replace(self.session, compile=lambda _: rank.compiled)

    def _validate(self) -> GenerationReport:
        """Validate results without an internal check, because one rank alone cannot run a line of the program."""
        self.clock.begin("validate")
        report = self._compare()
        GenerationCoverage(self.session, self.lengths).require_all_served()
        return report

    def _measure_all(self) -> tuple[GenerationBenchmark, ...]:
        """Return the measurements on all ranks, compared with PyTorch's own tensor parallelism."""
        rank = rank_of(self.session)
        rank.ask("wrap")
        reports = super()._measure_all()
        self.rank_times = tuple(rank.ask("record_generation", self._options()))
        rank.ask("release")
        return reports

    def _options(self) -> Mapping[str, object]:
        """Return the options of `generate` for the longest prompts in the largest batch."""
        inputs = inputs_of(self.session, self.lengths.largest, self.session.seed)
        return {**inputs, **greedy_options(self.lengths.new_tokens)}

    def results(self, program: Program) -> Results:
        """Return the results, with the times of the call for the last token on each rank."""
        return replace(super().results(program), ranks=self.rank_times)

    def _contenders(self) -> Mapping[str, Contender]:
        rank = rank_of(self.session)
        return {name: Contender(RanksGenerator(rank, name)) for name in (rank.baseline.name, THUNDER)}

    def traced_calls(self) -> TracedCalls:
        """Return the facts for the artifact; raise `CannotReplay` if ranks have different programs."""
        require_equal_programs(rank_of(self.session).ask("digests"))
        return super().traced_calls()
