"""The optimization on several ranks: the first rank decides, and the other ranks carry out its commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from thunder_core.backend.claiming.tuning import tuning
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import CannotReplay
from thunder_core.workflow.artifact.origin import TracedCalls
from thunder_core.workflow.benchmark import BenchmarkReport, measure, threads_in_use
from thunder_core.workflow.benchmark.measurement import MeasurementSettings
from thunder_core.workflow.benchmark.rank_times import RankTimes
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.call_optimization import CallOptimization
from thunder_core.workflow.pipeline.failures import stage_failures
from thunder_core.workflow.pipeline.ranks.link import link_ranks
from thunder_core.workflow.pipeline.ranks.one_process import rows_of
from thunder_core.workflow.pipeline.ranks.rank import Rank
from thunder_core.workflow.pipeline.ranks.session import RanksSession
from thunder_core.workflow.pipeline.ranks_opening import open_ranks
from thunder_core.workflow.pipeline.request.bench_request import THUNDER
from thunder_core.workflow.pipeline.session.build_report import Results
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.pipeline.session.program_time import TimeShares
from thunder_core.workflow.pipeline.session.range_coverage import suppress_shortfalls
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.validation import ValidationReport


def follow(plan: Plan) -> None:
    """Run the commands of the first rank on this rank, until the first rank has written the artifact.

    Raises `RankFailed` with the error of another rank.
    """
    assert plan.launch is not None
    with link_ranks(plan.launch, plan.prepared.loading.device) as link, stage_failures(lambda: "a step of a rank"):
        plan, session, _ = open_ranks(plan, link, lambda stage: None, lambda done, total: None)
        with apply_settings_of_first_rank(plan):
            rank_of(session).follow()


@contextmanager
def apply_settings_of_first_rank(plan: Plan) -> Iterator[None]:
    """Apply the settings with which the first rank chooses kernels; suppress warnings that the first rank reports."""
    with ExitStack() as stack:
        stack.enter_context(threads_in_use(plan.request.threads))
        stack.enter_context(tuning(plan.request.tune))
        if plan.generation is not None:
            stack.enter_context(suppress_shortfalls())
            stack.enter_context(quiet_transformers())
        yield


def rank_of(session: Session) -> Rank:
    """Return the rank of a session of several ranks."""
    assert isinstance(session, RanksSession)
    assert session.rank is not None
    return session.rank


def for_all_ranks(plan: Plan) -> Plan:
    """Return the plan with the batch of all ranks together; the batch of `plan` is the batch of one rank."""
    assert plan.launch is not None
    parts_of_batch = plan.prepared.parts_of_batch(plan.launch.size)
    return replace(plan, size=plan.size._replace(batch=plan.size.batch * parts_of_batch))


@dataclass(eq=False)
class RanksOptimization(CallOptimization):
    """The steps that optimize single calls on several ranks: training steps, or the forward of a divided model.

    The plan has the inputs of all ranks together. `rank_times` are the times of a measured call on each rank.
    """

    rank_times: tuple[RankTimes, ...] = ()

    def _compile_prepared(self, prepared: PreparedModel) -> Session:  # noqa: ARG002 - all ranks have compiled the model
        return self.session

    def _trace(self) -> None:
        self.session.call(self.example)

    def _validate(self) -> ValidationReport:
        self.clock.begin("validate")
        request = self.plan.request
        return self.session.validation_report(
            self.plan.size,
            request.inputs,
            allow_non_finite=request.allow_non_finite,
            advance=self.clock.advance,
            seconds=request.validate_budget,
        )

    def _measure_at(self, size: InputSize) -> BenchmarkReport:
        """Measure calls on all ranks, compared with PyTorch's own wrapper."""
        rank, request = rank_of(self.session), self.plan.request
        rank.ask("store_rows", dict(self.session.inputs(size)))
        report = measure(
            {name: partial(rank.ask, "step", name) for name in (rank.baseline.name, THUNDER)},
            MeasurementSettings(
                runs=request.runs,
                warmup=request.warmup,
                device=self.session.device,
                progress=self.clock.advance,
                configuration=self.session.configuration(size),
                seconds=request.benchmark_budget,
            ),
        )
        self.rank_times = tuple(rank.ask("record"))
        rank.ask("release")
        return report

    def results(self, program: Program) -> Results:
        """Return the results, with the times of a call on each rank."""
        return replace(super().results(program), ranks=self.rank_times)

    def _shares(self) -> TimeShares:
        """Return no shares, because one rank alone cannot run the program."""
        return TimeShares()

    def traced_calls(self) -> TracedCalls:
        """Return the facts for the artifact, with the inputs of one rank.

        Raises `CannotReplay` if ranks have different programs.
        """
        rank = rank_of(self.session)
        require_equal_programs(rank.ask("digests"))
        size = self.plan.size._replace(batch=self.plan.size.batch // rank.parts)
        return self.facts_of_calls(size, rows_of(self.example, 0, rank.parts))


def require_equal_programs(digests: list[str]) -> None:
    """Raise `CannotReplay` if the program of a rank differs from the program of the first rank."""
    differing_rank = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if differing_rank is not None:
        raise CannotReplay(
            f"rank {differing_rank} has traced a different program than rank 0, so no artifact can serve all ranks",
            fix="do not let the model's forward depend on the rank, and use the same processor, C++ compiler and "
            "environment variables on all ranks",
        )
