"""Search for the fastest configuration of the model in a request: plan, run trials, and write the winner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from thunder_core.foundation.errors import SpeedupMissed, ValidationError
from thunder_core.foundation.storage.digest import digest_of_file
from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.request.names import is_generation
from thunder_core.workflow.pipeline.optimization import Outcome, carry_out
from thunder_core.workflow.pipeline.request.automatic import choose_recipe
from thunder_core.workflow.pipeline.request.part_names import AUTO
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.search_request import USUAL_SECONDS, SearchRequest
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.planning import outline, plan
from thunder_core.workflow.pipeline.session.progress import Progress
from thunder_core.workflow.recipe_search.candidate import Candidate, ExcludedCandidate
from thunder_core.workflow.recipe_search.candidates import SearchContext, list_candidates
from thunder_core.workflow.recipe_search.estimates import Estimate, estimate
from thunder_core.workflow.recipe_search.observer import SearchObserver, SilentObserver
from thunder_core.workflow.recipe_search.request_trial import RequestSubject
from thunder_core.workflow.recipe_search.search_run import SearchRun
from thunder_core.workflow.recipe_search.stored_trials import StoredTrials
from thunder_core.workflow.report.search import SearchBounds, SearchReport

# The fields of a request that results of trials depend on, in addition to the model.
SIZES = ("batch", "seq", "cache", "prompt_length", "new_tokens", "height", "width", "dynamic", "threads", "tune")
TASK = ("train", "inputs", "allow_non_finite", "without", "metric")


@dataclass(frozen=True)
class ArtifactSearchResult:
    """The result of a search: its report, and the outcome that was written, or None if eager PyTorch won."""

    report: SearchReport
    outcome: Outcome | None


@dataclass(frozen=True)
class RequestSearch:
    """A planned search: the request with the base recipe, the plan of the model, and the estimates of all candidates.

    `unfit` are the candidates that do not fit the model or the task.
    """

    request: Request
    search: SearchRequest
    base: Plan
    estimates: tuple[Estimate, ...]
    unfit: tuple[ExcludedCandidate, ...]

    began: float

    @classmethod
    def plan_search(cls, request: Request, search: SearchRequest, began: float | None = None) -> RequestSearch:
        """Plan a search without heavy work and without writing anything; raise the errors of planning the model.

        The time of the search starts at `began`, on the monotonic clock.
        """
        began = time.monotonic() if began is None else began
        base = outline(replace(request, recipe=AUTO))
        loading = base.prepared.loading
        names = choose_recipe(loading.config.model_type, loading.device).names
        request = replace(request, recipe=names, model=base.prepared.model)
        context = SearchContext(
            loading.config.model_type,
            loading.device,
            base.prepared.dtype_name,
            request.train,
            is_generation(request.model.task),
            may_change_dtype=request.model.dtype is None,
            may_change_threads=request.threads is None,
            bounds=bounds_of(search),
        )
        candidates, unfit = list_candidates(context)
        usual = outline(request)
        estimates = tuple(estimate(candidate, request, usual, context.bounds) for candidate in candidates)
        return cls(request, search, base, estimates, tuple(unfit), began)

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates to try; eager PyTorch is always the first."""
        return [estimate.candidate for estimate in self.estimates_of_candidates]

    @property
    def bounds(self) -> SearchBounds:
        """The bounds that the user has set."""
        return bounds_of(self.search)

    @property
    def estimates_of_candidates(self) -> list[Estimate]:
        """The estimates of the candidates to try."""
        return [estimate for estimate in self.estimates if not estimate.reason or estimate.candidate.is_eager]

    @property
    def excluded(self) -> list[ExcludedCandidate]:
        """The candidates that the plan rules out, and the candidates that do not fit the model or the task."""
        ruled_out = (estimate for estimate in self.estimates if estimate.reason and not estimate.candidate.is_eager)
        return [
            *(ExcludedCandidate(estimate.candidate, estimate.reason, estimate.least_memory) for estimate in ruled_out),
            *self.unfit,
        ]

    def run(self, observer: SearchObserver | None = None, *, writes: bool = True) -> SearchRun:
        """Run the trials and return the finished search; raise the errors of `SearchRun.run`."""
        search_run = SearchRun(
            RequestSubject(self.request),
            self.candidates,
            self.excluded,
            self.search.objective,
            self.bounds,
            self.search.search or USUAL_SECONDS,
            StoredTrials.of(self._facts, self.base.prepared.loading.device),
            self.search.fresh,
            writes,
            observer or SilentObserver(),
            began=self.began,
        )
        search_run.run()
        return search_run

    def write(self, run: SearchRun, progress: Progress | None = None) -> ArtifactSearchResult:
        """Write the winner of a search as an artifact, with the search in its report.

        If the winner fails the validation of the artifact, it is refused, and the next candidate wins. Raises the
        errors of `SearchRun.report` and `carry_out`, and `SpeedupMissed` if eager PyTorch wins and a speed-up is
        required.
        """
        while True:
            report, winner = run.report(), run.winner
            assert winner is not None
            if winner.is_eager:
                self._require_speedup(report)
                return ArtifactSearchResult(report, None)
            try:
                planned = plan(winner.request(self.request))
                return ArtifactSearchResult(report, carry_out(planned, progress, report))
            except ValidationError as error:
                run.refuse(winner, error)

    def _require_speedup(self, report: SearchReport) -> None:
        """Raise `SpeedupMissed` if a speed-up above 1 is required, because eager PyTorch has won."""
        least = self.request.require_speedup
        if least is not None and least > 1:
            error = SpeedupMissed(
                f"a speed-up of {least:g} is required, but eager PyTorch wins the search; nothing was written",
                fix="search longer, allow a larger loss, or require less",
            )
            error.report = report
            raise error

    def as_data(self) -> dict[str, object]:
        """Return the plan of the search as plain data."""
        return {
            "model": self.base.prepared.model_name,
            "task": self.base.prepared.loading.task,
            "device": self.base.device,
            "objective": self.search.objective,
            "bounds": self.bounds.model_dump(),
            "budget": self.search.search,
            "candidates": [
                {
                    "name": estimate.candidate.name,
                    "recipes": list(estimate.candidate.recipes),
                    "settings": estimate.candidate.settings,
                    "rank": estimate.candidate.rank,
                    "least_memory": estimate.least_memory,
                }
                for estimate in self.estimates_of_candidates
            ],
            "excluded": [{"name": excluded.candidate.name, "reason": excluded.reason} for excluded in self.excluded],
        }

    @property
    def _facts(self) -> Mapping[str, object]:
        """The facts that the results of trials depend on, in addition to the machine and the versions."""
        request, model = self.request, self.request.model
        origin = self.base.prepared.loading.origin
        files = weights_in(origin.folder) if isinstance(origin, FolderOrigin) else {}
        samples = {name: digest_of_file(file) for name in ("input", "evaluate") if (file := getattr(request, name))}
        return {
            "origin": origin.as_dict(),
            "files": files,
            "samples": samples,
            "model": {**vars(model), "sample": None},
            "recipe": request.recipe,
            "request": {name: getattr(request, name) for name in (*SIZES, *TASK)},
            "default threads": torch.get_num_threads(),
            "objective": "latency" if self.search.objective == "latency" else "largest batch",
        }


def bounds_of(search: SearchRequest) -> SearchBounds:
    """Return the bounds that a request names."""
    return SearchBounds(
        max_kl=search.max_kl, min_top1=search.min_top1, max_error=search.max_error, max_memory=search.max_memory
    )


def weights_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the files of a model's folder, each with its size and modification time."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file())
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}
