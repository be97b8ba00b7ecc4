"""A search for a module in Python: `thunder_core.search(model, inputs, budget="5m")`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import BadOption, ThunderError, WrongInputs
from thunder_core.foundation.options import require_values
from thunder_core.foundation.options.amount import bytes_of as bytes_in
from thunder_core.foundation.tested_versions import require_tested_torch
from thunder_core.workflow.benchmark import machine_name, measure, threads_in_use
from thunder_core.workflow.benchmark.timing import peak_of
from thunder_core.workflow.models.loading.fingerprint import weights_fingerprint
from thunder_core.workflow.models.memory.memory_guard import guarded_memory
from thunder_core.workflow.pipeline.request.bench_request import OURS
from thunder_core.workflow.pipeline.request.recipes import find_recipe, named_executor
from thunder_core.workflow.pipeline.request.search_request import SearchRequest, search_seconds
from thunder_core.workflow.pipeline.session.application import compile as compile_module
from thunder_core.workflow.pipeline.session.application import device_of
from thunder_core.workflow.recipe_search.candidate import EAGER, Candidate, Excluded
from thunder_core.workflow.recipe_search.candidates import Ground, list_candidates
from thunder_core.workflow.recipe_search.kept import KeptTrials
from thunder_core.workflow.recipe_search.loss import loss_between
from thunder_core.workflow.recipe_search.order import Order
from thunder_core.workflow.recipe_search.request_search import bounds_of
from thunder_core.workflow.recipe_search.rounds import clock_in_words, rounds_for, timer_of
from thunder_core.workflow.recipe_search.search_run import SearchRun
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts
from thunder_core.workflow.report.search import SearchReport
from thunder_core.workflow.validation import validate
from thunder_core.workflow.validation.quality import bytes_of

Module = TypeVar("Module", bound=torch.nn.Module)
Given = torch.Tensor | Mapping[str, Any] | tuple[Any, ...]
WARMUP = 2


@dataclass(frozen=True)
class FoundModule(Generic[Module]):
    """The result of a search: the module that the winner makes of the model, and the report of the search."""

    module: Module
    report: SearchReport


def search(
    model: Module,
    inputs: Given | list[Given],
    *,
    budget: str | float = "5m",
    objective: str = "latency",
    bounds: Mapping[str, float | str] | None = None,
    fresh: bool = False,
) -> FoundModule[Module]:
    """Try recipes for a module in inference, and compile it by the best one within the bounds.

    `inputs` are the arguments of a call: a tensor, a tuple or a dict of keyword arguments; or a list of several, of
    which the first is traced and measured, and the others are validated on. `budget` is the time, in seconds or as
    `"5m"`; the `objective` one of latency, throughput, memory and size. `bounds` may have `max_kl`, `min_top1`,
    `max_error` and `max_memory` (bytes, or `"8GiB"`), compared with eager PyTorch. Each candidate is compiled,
    validated and measured in a process of its own, to which the model is sent. Results are kept in the cache folder;
    a `fresh` search ignores those of earlier ones. Eager PyTorch is a candidate: if it wins, the model itself is
    returned.

    Raises BadOption and UnknownName for values that cannot be, WrongInputs for inputs that do not fit and a model that
    cannot be sent to another process, BoundMissed where nobody is within the bounds, and SearchOutOfTime where the time
    ended before a candidate was measured.
    """
    began = time.monotonic()
    require_tested_torch()
    asked = search_request(budget, objective, bounds or {}, fresh=fresh)
    calls = [named_arguments(model, one) for one in (inputs if isinstance(inputs, list) else [inputs])]
    if not calls:
        raise WrongInputs("inputs=[] is empty", fix="pass the arguments of at least one call")
    subject = ModuleSubject(model, tuple(calls), model.training)
    run = search_run(subject, asked, began)
    run.run()
    report, winner = run.report(), run.winner
    assert winner is not None
    return FoundModule(compiled_by(model, winner), report)


def search_request(
    budget: str | float, objective: str, bounds: Mapping[str, float | str], *, fresh: bool
) -> SearchRequest:
    """The request that the arguments of `search` make; raises for values that cannot be."""
    known = ("max_kl", "min_top1", "max_error", "max_memory")
    for name in bounds:
        if name not in known:
            raise BadOption(f"bounds has {name!r}, which is not a bound", fix=f"use one of: {', '.join(known)}")
    given: dict[str, Any] = dict(bounds)
    if isinstance(given.get("max_memory"), str):
        given["max_memory"] = bytes_in("max_memory", given["max_memory"])
    request = SearchRequest(search_seconds("budget", budget), objective, **given, fresh=fresh)
    require_values(request)
    return request


def named_arguments(model: torch.nn.Module, given: Given) -> dict[str, Any]:
    """The arguments of a call by their names; raises `WrongInputs` for those that the model does not take."""
    if isinstance(given, Mapping):
        return dict(given)
    positional = given if isinstance(given, tuple) else (given,)
    try:
        return dict(inspect.signature(model.forward).bind(*positional).arguments)
    except TypeError as error:
        raise WrongInputs(
            f"{type(model).__name__} does not take these inputs: {error}",
            fix="pass a tensor, a tuple of positional arguments, or a dict of keyword arguments",
        ) from error


def search_run(subject: ModuleSubject, asked: SearchRequest, began: float) -> SearchRun:
    """The search for a module, which has not begun yet."""
    candidates, excluded = candidates_for(subject, asked)
    facts = {
        "weights": weights_fingerprint(subject.model),
        "inputs": [{name: described(value) for name, value in call.items()} for call in subject.calls],
        "train": subject.is_training,
    }
    return SearchRun(
        subject,
        candidates,
        excluded,
        asked.objective,
        bounds_of(asked),
        asked.search or 0.0,
        KeptTrials.of(facts, subject.device),
        fresh=asked.fresh,
        writes=False,
        began=began,
    )


def described(value: object) -> object:
    """An argument, as far as times depend on it."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), list(value.stride())]
    return repr(value)


def candidates_for(subject: ModuleSubject, asked: SearchRequest) -> tuple[list[Candidate], list[Excluded]]:
    """The candidates for a module, and those that its class or this machine rules out."""
    model_type = getattr(getattr(subject.model, "config", None), "model_type", None)
    ground = Ground(model_type, subject.device, "", may_change_dtype=False, bounds=bounds_of(asked))
    listed, excluded = list_candidates(ground)
    found = []
    for candidate in listed:
        reason = unfitness(candidate, subject)
        if reason:
            excluded.append(Excluded(candidate, reason))
        else:
            found.append(candidate)
    return found, excluded


def unfitness(candidate: Candidate, subject: ModuleSubject) -> str:
    """The reason why a candidate cannot be made of a module here; empty where it may be."""
    if candidate.is_eager:
        return ""
    try:
        recipe = find_recipe(parts_of(candidate), dict(candidate.options))
        recipe.validate_all(subject.model)
    except ThunderError as error:
        return f"{error.code} {error.what}"
    return "; ".join(f"{lost.part}: {lost.reason}" for lost in recipe.degraded(device=subject.device))


def parts_of(candidate: Candidate) -> list[Any]:
    """The recipes and executors of a candidate, as `compile` takes them."""
    return [*candidate.recipes, *map(named_executor, candidate.executors)]


def compiled_by(model: Module, candidate: Candidate) -> Module:
    """The module that a candidate makes of a model: for eager PyTorch, the model itself."""
    if candidate.is_eager:
        return model
    if candidate.threads is not None:
        torch.set_num_threads(candidate.threads)
    options: dict[str, Any] = dict(candidate.options)
    return compile_module(model, parts_of(candidate), without=candidate.without, **options)


@dataclass(frozen=True, eq=False)
class ModuleSubject:
    """A module with the arguments of calls: the first is traced and measured, all are validated on."""

    model: torch.nn.Module
    calls: tuple[dict[str, Any], ...]
    is_training: bool = False
    threads: int = field(default_factory=torch.get_num_threads)

    @property
    def device(self) -> torch.device:
        """The device of the model; the CPU for one without tensors."""
        return device_of(self.model) or torch.device("cpu")

    def try_candidate(self, order: Order) -> TrialFacts:
        """Compile, validate and measure a candidate; raises what compiling and validating raise."""
        began = time.perf_counter()
        torch.set_num_threads(self.threads)
        self.model.train(self.is_training)
        with guarded_memory(), torch.no_grad():
            compiled = compiled_by(self.model, order.candidate)
            if order.first and not order.candidate.is_eager:
                self._validate(compiled, order.candidate)
            facts = self._measured(compiled, order)
        return facts.model_copy(update={"took": time.perf_counter() - began})

    def _validate(self, compiled: torch.nn.Module, candidate: Candidate) -> None:
        recipe = find_recipe(parts_of(candidate), dict(candidate.options))
        dtype = next((one.dtype for one in self.model.parameters()), torch.float32)
        prepared: Any = specializations_of(compiled).subject
        compiled(**self.calls[0])
        validate(compiled, prepared, self.calls, recipe.loosest_tolerance(dtype), language_model=True)

    def _measured(self, compiled: torch.nn.Module, order: Order) -> TrialFacts:
        calls: dict[str, Callable[[], object]] = {EAGER: self._eager_call(order)}
        if not order.candidate.is_eager:
            calls[OURS] = partial(compiled, **self.calls[0])
        runs = rounds_for(calls, order.rounds)
        other = order.candidate.threads and max(order.candidate.threads, self.threads)
        timer = timer_of(self.device, other)
        report = measure(calls, runs=runs, warmup=WARMUP, device=self.device, timer=timer)
        times = {one.name: one.seconds for one in report.candidates}
        ours = times.get(OURS, times[EAGER])
        machine = machine_name(self.device)
        facts = TrialFacts(
            eager=times[EAGER],
            ours=ours,
            asked=order.rounds,
            machine=machine,
            call=f"call{clock_in_words(self.device, other)}",
        )
        if not order.first:
            return facts
        size = bytes_of(compiled)
        peak = peak_of(partial(compiled, **self.calls[0]), self.device, on_host=True)
        memory = None if peak is None else size + peak
        return facts.model_copy(update={**self._loss(compiled, order.candidate), "size": size, "memory": memory})

    def _eager_call(self, order: Order) -> Callable[[], object]:
        call = partial(self.model, **self.calls[0])
        if order.candidate.threads is None:
            return call

        def with_threads() -> object:
            with threads_in_use(self.threads):
                return call()

        return with_threads

    def _loss(self, compiled: torch.nn.Module, candidate: Candidate) -> dict[str, object]:
        """The loss of the candidate; raises `QualityLost` for more than its recipe allows."""
        bound = (
            None if candidate.is_eager else find_recipe(parts_of(candidate), dict(candidate.options)).loosest_quality
        )
        return vars(
            loss_between(
                lambda number: self.model(**self.calls[number]),
                lambda number: compiled(**self.calls[number]),
                range(len(self.calls)),
                bound if candidate.quantizes else None,
            )
        )
