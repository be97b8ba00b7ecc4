"""The trial of a candidate for a model that a request names: all steps of the pipeline except writing the artifact."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from thunder_core.foundation.options.generation_lengths import Prompts
from thunder_core.workflow.benchmark import BenchmarkReport, measure
from thunder_core.workflow.benchmark.measurement import MeasurementSettings
from thunder_core.workflow.benchmark.timing import peak_memory_of
from thunder_core.workflow.models.folder.weight_bytes import LARGE_WEIGHT_BYTES
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.models.request.mode import put_into_mode
from thunder_core.workflow.pipeline.generation.generation_calls import inputs_of
from thunder_core.workflow.pipeline.generation.generation_speed import Contender, measure_generation, time_tokens
from thunder_core.workflow.pipeline.optimization import Workflow, apply_settings, open_workflow
from thunder_core.workflow.pipeline.request.bench_request import THUNDER
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.build_report import Results
from thunder_core.workflow.pipeline.session.clock import StageClock
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.planning import plan
from thunder_core.workflow.pipeline.session.progress import SilentProgress
from thunder_core.workflow.pipeline.session.session import Session, open_model
from thunder_core.workflow.recipe_search.candidate import EAGER, Candidate
from thunder_core.workflow.recipe_search.loss import Loss, loss_between
from thunder_core.workflow.recipe_search.rounds import clock_in_words, rounds_for, timer_of, with_threads
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts
from thunder_core.workflow.recipe_search.trial_task import TrialTask
from thunder_core.workflow.validation.quality import bytes_of

FIRST_THREADS = torch.get_num_threads()  # the number at the start of the process, before a candidate changes it
WARMUP = 2
GENERATION_WARMUP = 0  # each contender has generated once before


@dataclass(frozen=True)
class RequestSubject:
    """A model that a request names; the recipe of the request is the base recipe of the candidates."""

    request: Request

    def try_candidate(self, task: TrialTask) -> TrialFacts:
        """Load, compile, validate and measure a candidate; raise the errors of the pipeline."""
        began = time.perf_counter()
        planned = plan(request_of(task, self.request))
        clock = StageClock(SilentProgress())
        with apply_settings(planned, clock):
            planned, workflow, quality = open_workflow(planned, clock)
            trial = RequestTrial(task, planned, workflow, self.request)
            with workflow.ready():
                facts = trial.facts()
        skipped = quality.skipped if quality is not None else task.skipped
        return facts.model_copy(update={"skipped": skipped, "first_trial_seconds": time.perf_counter() - began})


def request_of(task: TrialTask, base: Request) -> Request:
    """Return the request of a trial, without the benchmark of the pipeline.

    Later trials of a candidate, and trials of eager PyTorch, do not validate, evaluate or look for layers to skip.
    """
    request = replace(task.candidate.request(base), benchmark=False)
    if task.first and not task.candidate.is_eager:
        return request
    request = replace(request, validate=False, skip_layers="", evaluate=None)
    return replace(request, options={**request.options, **skip_options(task)})


def skip_options(task: TrialTask) -> dict[str, str]:
    """Return the option of the recipe that leaves layers in float, which the first trial has determined."""
    return {f"{task.candidate.recipes[-1]}.skip": ",".join(task.skipped)} if task.skipped else {}


@dataclass(eq=False)
class RequestTrial:
    """The trial of a loaded candidate, which is compared with the model of the base request in eager PyTorch."""

    task: TrialTask
    plan: Plan
    workflow: Workflow
    base: Request

    @property
    def candidate(self) -> Candidate:
        """The candidate of the trial."""
        return self.task.candidate

    @property
    def session(self) -> Session:
        """The session of the candidate."""
        return self.workflow.session

    @cached_property
    def eager(self) -> Session:
        """The session of the original model; a candidate with another dtype needs a second model."""
        if self.candidate.dtype is None:
            original: Any = self.session.original
            return replace(self.session, loaded=replace(self.session.loaded, model=original, original=None))
        planned = plan(self.base)
        session = open_model(planned.prepared, planned.purpose)
        put_into_mode(session.model, train=self.base.train)
        return session

    def facts(self) -> TrialFacts:
        """Measure the times and, in the first trial, the loss and the memory."""
        if self.candidate.is_eager:
            return self._facts_of_eager()
        program = self.workflow.acquire()
        results = self.workflow.results(program)
        report = self._measure_sessions({EAGER: self.eager, THUNDER: self.session})
        times = {timed.name: timed.seconds for timed in report.candidates}
        facts = self._times(times[EAGER], times[THUNDER], report)
        if not self.task.first:
            return facts
        loss = self._loss(results)
        return facts.model_copy(update={**vars(loss), **self._bytes(self.session, self.session.compiled)})

    def _times(self, eager: tuple[float, ...], optimized: tuple[float, ...], report: BenchmarkReport) -> TrialFacts:
        clock = clock_in_words(self.session.device, self._most_threads)
        facts = {
            "requested_rounds": self.task.rounds,
            "machine": report.machine,
            "call": f"{call_in_words(report)}{clock}",
        }
        return TrialFacts.model_validate({"eager": eager, "candidate_times": optimized, **facts})

    def _facts_of_eager(self) -> TrialFacts:
        report = self._measure_sessions({EAGER: self.eager})
        seconds, call = report.first.seconds, self._call(self.eager)
        loss = Loss() if self.base.train else loss_between(call, call, self._numbers)
        facts = self._times(seconds, seconds, report)
        return facts.model_copy(update={**vars(loss), **self._bytes(self.eager, self.eager.model)})

    def _loss(self, results: Results) -> Loss:
        """Return the loss of the candidate, compared with eager PyTorch; all values are None for a training step."""
        if self.base.train:
            return Loss()
        compiled = self.session.compiled if self.plan.generation is None else None
        optimized = self._call(self.session, compiled)
        loss = loss_between(self._call(self.eager), optimized, self._numbers, self.candidate.bound)
        generation = results.generation
        if generation is None:
            return loss
        divergence = max(prompt.mean_divergence for prompt in generation.prompts)
        agreement = generation.equal / max(generation.tokens, 1)
        top1 = agreement if loss.top1 is None else min(loss.top1, agreement)
        return replace(loss, kl=max(loss.kl or 0.0, divergence), top1=top1)

    @property
    def _numbers(self) -> list[int]:
        """The numbers of the inputs on which the loss is measured; these inputs were not traced."""
        numbers, _ = self.plan.purpose.numbers_to_validate_on(
            self.session.loaded, batch=self.plan.size.batch, seq=self.plan.size.seq, requested=self.base.inputs
        )
        return numbers

    def _call(self, session: Session, function: Callable[..., Any] | None = None) -> Callable[[int], object]:
        """Return a function that calls a session's model, or a function, on the inputs with a number."""
        call = session.call_of(function or session.model)
        return lambda number: call(**session.inputs(self.plan.size, number))

    def _measure_sessions(self, sessions: Mapping[str, Session]) -> BenchmarkReport:
        """Measure the sessions in turn: the session `eager` runs the original model, the other the compiled model."""
        if self.plan.generation is not None:
            return self._measure_generation(sessions)
        size = self._size
        calls = {}
        for name, session in sessions.items():
            function = session.compiled if name == THUNDER else session.model
            calls[name] = self._with_threads(name, partial(session.call_of(function), **session.inputs(size)))
        return measure(
            calls,
            MeasurementSettings(
                runs=rounds_for(calls, self.task.rounds),
                warmup=WARMUP,
                device=self.session.device,
                release=self.session.release,
                configuration=self.eager.configuration(size),
                seconds=self.base.benchmark_budget,
                timer=timer_of(self.session.device, self._most_threads),
            ),
        )

    def _measure_generation(self, sessions: Mapping[str, Session]) -> BenchmarkReport:
        assert self.plan.generation is not None
        models = {name: session.compiled if name == THUNDER else session.model for name, session in sessions.items()}
        return measure_generation(
            {name: Contender(model) for name, model in models.items()},
            inputs_of(self.session, self._prompts, self.session.seed),
            self.plan.generation.new_tokens,
            MeasurementSettings(
                runs=self.task.rounds,
                warmup=GENERATION_WARMUP,
                device=self.session.device,
                memory=False,
                seconds=self.base.benchmark_budget,
                timer=timer_of(self.session.device, self._most_threads),
            ),
        )

    def _with_threads(self, name: str, call: Callable[[], object]) -> Callable[[], object]:
        """Return the call. If the candidate changes the number of threads, eager calls use the default number."""
        if name != EAGER or self.candidate.threads is None:
            return call
        return with_threads(call, self.base.threads or FIRST_THREADS)

    @property
    def _most_threads(self) -> int | None:
        """The larger number of threads of eager PyTorch and the candidate, or None if the candidate sets none."""
        own, usual = self.candidate.threads, self.base.threads or FIRST_THREADS
        return max(own, usual) if own is not None else None

    def _bytes(self, session: Session, model: object) -> dict[str, int | None]:
        """Return the bytes of the weights, and the bytes of the weights plus the peak of a call."""
        size = bytes_of(session.model)
        peak = peak_memory_of(self._call_with_peak(session, model, size), session.device, profile_cpu=True)
        return {"size": size, "memory": None if peak is None else size + peak}

    def _call_with_peak(self, session: Session, model: Any, size: int) -> Callable[[], object]:
        """Return the call whose peak memory is measured.

        For generation by a large model, the call generates a single token, because the profiler's events of more tokens
        would fill the memory.
        """
        session.release()
        if self.plan.generation is None:
            return partial(session.call_of(model), **session.inputs(self._size))
        tokens = self.plan.generation.new_tokens if size < LARGE_WEIGHT_BYTES else 1
        prompt = inputs_of(session, self._prompts, session.seed)
        return lambda: time_tokens(Contender(model), prompt, tokens)

    @property
    def _size(self) -> InputSize:
        """The size of the measured calls: from a range of batches, the smallest for latency, otherwise the largest."""
        ends = self.base.dynamic.get("batch")
        if ends is None:
            return self.plan.size
        return self.plan.size._replace(batch=ends[0] if self.task.objective == "latency" else ends[1])

    @property
    def _prompts(self) -> Prompts:
        assert self.plan.generation is not None
        largest = self.plan.generation.largest
        return largest._replace(batch=1) if self.task.objective == "latency" else largest


def call_in_words(report: BenchmarkReport) -> str:
    """Describe the timed call and its size."""
    configuration = report.configuration
    size = configuration.get("size", configuration.get("seq", ""))
    return f"{report.call} {configuration.get('batch', '')} x {size}"
