"""Search for the fastest configuration of a module from Python: `thunder_core.search(model, inputs, budget="5m")`."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import BadOption, ThunderError, WrongInputs
from thunder_core.foundation.errors.tree import message_line
from thunder_core.foundation.model_configs import model_type_of
from thunder_core.foundation.options import require_values
from thunder_core.foundation.options.amount import bytes_of as bytes_in
from thunder_core.foundation.storage.digest import digest_of_file
from thunder_core.foundation.tested_versions import require_tested_torch
from thunder_core.workflow.benchmark import machine_name, measure
from thunder_core.workflow.benchmark.measurement import MeasurementSettings
from thunder_core.workflow.benchmark.timing import peak_memory_of
from thunder_core.workflow.models.loading.fingerprint import weights_fingerprint
from thunder_core.workflow.models.memory.free_memory import is_out_of_memory
from thunder_core.workflow.models.memory.memory_guard import limit_private_memory
from thunder_core.workflow.pipeline.request.bench_request import THUNDER
from thunder_core.workflow.pipeline.request.recipes import find_recipe
from thunder_core.workflow.pipeline.request.search_request import SearchRequest, search_seconds
from thunder_core.workflow.pipeline.session.application import compile as compile_module
from thunder_core.workflow.pipeline.session.application import device_of
from thunder_core.workflow.recipe_search.candidate import EAGER, Candidate, ExcludedCandidate
from thunder_core.workflow.recipe_search.candidates import SearchContext, list_candidates
from thunder_core.workflow.recipe_search.loss import loss_between
from thunder_core.workflow.recipe_search.request_search import bounds_of
from thunder_core.workflow.recipe_search.rounds import clock_in_words, rounds_for, timer_of, with_threads
from thunder_core.workflow.recipe_search.search_run import SearchRun
from thunder_core.workflow.recipe_search.stored_trials import StoredTrials
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts
from thunder_core.workflow.recipe_search.trial_task import TrialTask
from thunder_core.workflow.report.search import SearchReport
from thunder_core.workflow.validation import validate
from thunder_core.workflow.validation.comparison import ValidationSettings
from thunder_core.workflow.validation.quality import bytes_of

Module = TypeVar("Module", bound=torch.nn.Module)
Arguments = torch.Tensor | Mapping[str, Any] | tuple[Any, ...]
UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
WARMUP = 2


@dataclass(frozen=True)
class ModuleSearchResult(Generic[Module]):
    """The result of a search: `module` is the model compiled by the winner, and `report` describes the search."""

    module: Module
    report: SearchReport


def search(
    model: Module,
    inputs: Arguments | list[Arguments],
    *,
    budget: str | float = "5m",
    objective: str = "latency",
    bounds: Mapping[str, float | str] | None = None,
    fresh: bool = False,
) -> ModuleSearchResult[Module]:
    """Try recipes for inference with a module, and compile the module with the best recipe within the bounds.

    `inputs` are the arguments of a call: a tensor, a tuple, or a dict of keyword arguments. A list has the arguments
    of several calls: the first call is traced and measured, and all calls are used for validation. `budget` is the
    time in seconds, or a string such as `"5m"`. `objective` is latency, throughput, memory or size. `bounds` may have
    `max_kl`, `min_top1` and `max_error`, which limit the difference from eager PyTorch, and `max_memory` (bytes, or a
    string such as `"8GiB"`). The model is sent to a separate process for each candidate, which compiles, validates and
    measures it. Results are stored in the cache folder; a `fresh` search ignores the results of earlier searches.
    Eager PyTorch is a candidate: if it wins, the model itself is returned.

    Raises BadOption and UnknownName for invalid values, WrongInputs for inputs that the model does not accept and for
    a model that cannot be sent to another process, BoundMissed if no candidate is within the bounds, and
    SearchOutOfTime if the time ended before a candidate was measured.
    """
    began = time.monotonic()
    require_tested_torch()
    request = search_request(budget, objective, bounds or {}, fresh=fresh)
    calls = [named_arguments(model, call) for call in (inputs if isinstance(inputs, list) else [inputs])]
    if not calls:
        raise WrongInputs("inputs=[] is empty", fix="pass the arguments of at least one call")
    subject = ModuleSubject(model, tuple(calls), model.training)
    run = search_run(subject, request, began)
    run.run()
    report, winner = run.report(), run.winner
    assert winner is not None
    return ModuleSearchResult(compile_as(model, winner), report)


def search_request(
    budget: str | float, objective: str, bounds: Mapping[str, float | str], *, fresh: bool
) -> SearchRequest:
    """Return the request for the arguments of `search`; raise BadOption or UnknownName for invalid values."""
    bound_names = ("max_kl", "min_top1", "max_error", "max_memory")
    for name in bounds:
        if name not in bound_names:
            raise BadOption(f"bounds has {name!r}, which is not a bound", fix=f"use one of: {', '.join(bound_names)}")
    values = {name: bound_value(name, value) for name, value in bounds.items() if value is not None}
    request = SearchRequest(search_seconds("budget", budget), objective, **values, fresh=fresh)
    require_values(request)
    return request


def bound_value(name: str, value: object) -> Any:
    """Return the value of a bound: a number, or the number of bytes of a size; raise BadOption for other values."""
    if name == "max_memory" and isinstance(value, str):
        return bytes_in(name, value)
    if not isinstance(value, int | float) or (name == "max_memory" and not isfinite(value)):
        raise BadOption(f"the bound {name} is {value!r}, which is not a number", fix=f"set {name} to a number")
    return int(value) if name == "max_memory" else value


def named_arguments(model: torch.nn.Module, call: Arguments) -> dict[str, Any]:
    """Return the arguments of a call by name; raise `WrongInputs` for arguments that the model does not accept."""
    if isinstance(call, Mapping):
        return dict(call)
    positional = call if isinstance(call, tuple) else (call,)
    signature = inspect.signature(model.forward)
    try:
        arguments = signature.bind(*positional).arguments
    except TypeError as error:
        raise WrongInputs(
            f"{type(model).__name__} does not take these inputs: {error}",
            fix="pass a tensor, a tuple of positional arguments, or a dict of keyword arguments",
        ) from error
    unnamed = [name for name in arguments if signature.parameters[name].kind in UNNAMED]
    if unnamed:
        raise WrongInputs(
            f"{type(model).__name__}.forward takes {', '.join(unnamed)} by position only; a search passes names",
            fix="wrap the model in a module whose forward has named parameters",
        )
    return dict(arguments)


def search_run(subject: ModuleSubject, request: SearchRequest, began: float) -> SearchRun:
    """Return the search for a module, which has not started yet."""
    candidates, excluded = candidates_for(subject, request)
    facts = {
        "weights": weights_fingerprint(subject.model),
        "modules": repr(subject.model),
        "code": source_digests(subject.model),
        "inputs": [{name: describe(value) for name, value in call.items()} for call in subject.calls],
        "train": subject.is_training,
    }
    return SearchRun(
        subject,
        candidates,
        excluded,
        request.objective,
        bounds_of(request),
        request.search or 0.0,
        StoredTrials.of(facts, subject.device),
        fresh=request.fresh,
        writes=False,
        began=began,
    )


def source_digests(model: torch.nn.Module) -> dict[str, str]:
    """Return the digests of the source files that define the classes of a model's modules."""
    classes = {base for module in model.modules() for base in type(module).__mro__}
    names = {getattr(sys.modules.get(kind.__module__), "__file__", None) for kind in classes}
    files = sorted(Path(name) for name in names if name is not None)
    return {str(file): digest_of_file(file) for file in files if file.is_file()}


def describe(value: object) -> object:
    """Describe the properties of an argument that timings depend on: dtype, shape and strides, or the repr."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), list(value.stride())]
    return repr(value)


def candidates_for(subject: ModuleSubject, request: SearchRequest) -> tuple[list[Candidate], list[ExcludedCandidate]]:
    """Return the candidates for a module, and the candidates that its class or this machine rules out."""
    model_type = model_type_of(subject.model)
    context = SearchContext(model_type, subject.device, "", may_change_dtype=False, bounds=bounds_of(request))
    listed, excluded = list_candidates(context)
    candidates = []
    for candidate in listed:
        reason = reason_against(candidate, subject)
        if reason:
            excluded.append(ExcludedCandidate(candidate, reason))
        else:
            candidates.append(candidate)
    return candidates, excluded


def reason_against(candidate: Candidate, subject: ModuleSubject) -> str:
    """Return the reason why a candidate does not fit the module or this machine, or an empty string."""
    if candidate.is_eager:
        return ""
    try:
        recipe = find_recipe(candidate.recipes, dict(candidate.options))
        recipe.validate_all(subject.model)
    except ThunderError as error:
        return f"{error.code} {error.what}"
    return "; ".join(f"{lost.part}: {lost.reason}" for lost in recipe.skipped_parts(device=subject.device))


def compile_as(model: Module, candidate: Candidate) -> Module:
    """Compile a model as a candidate requires; for eager PyTorch, return the model itself."""
    if candidate.is_eager:
        return model
    if candidate.threads is not None:
        torch.set_num_threads(candidate.threads)
    options: dict[str, Any] = dict(candidate.options)
    return compile_module(model, candidate.recipes, without=candidate.without, **options)


@dataclass(frozen=True, eq=False)
class ModuleSubject:
    """A module with the arguments of calls: the first call is traced and measured, and all calls are validated."""

    model: torch.nn.Module
    calls: tuple[dict[str, Any], ...]
    is_training: bool = False
    threads: int = field(default_factory=torch.get_num_threads)

    @property
    def device(self) -> torch.device:
        """The device of the model; the CPU for a model without tensors."""
        return device_of(self.model) or torch.device("cpu")

    def try_candidate(self, task: TrialTask) -> TrialFacts:
        """Compile, validate and measure a candidate; raise the errors of compilation and validation."""
        began = time.perf_counter()
        torch.set_num_threads(self.threads)
        self.model.train(self.is_training)
        with limit_private_memory(), torch.no_grad():
            if task.candidate.is_eager:
                self._require_accepted_inputs()
            compiled = compile_as(self.model, task.candidate)
            if task.first and not task.candidate.is_eager:
                self._validate(compiled, task.candidate)
            facts = self._measure_module(compiled, task)
        return facts.model_copy(update={"first_trial_seconds": time.perf_counter() - began})

    def _require_accepted_inputs(self) -> None:
        """Raise `WrongInputs` if a call of the model in eager PyTorch raises an error."""
        for number, call in enumerate(self.calls):
            try:
                self.model(**call)
            except Exception as error:  # the code of the model may raise any exception
                if is_out_of_memory(error):
                    raise
                raise WrongInputs(
                    f"call {number} of the model fails in eager PyTorch: {type(error).__name__}: {message_line(error)}",
                    fix="call the model with these inputs without a search, and correct the inputs or the model",
                ) from error

    def _validate(self, compiled: torch.nn.Module, candidate: Candidate) -> None:
        recipe = find_recipe(candidate.recipes, dict(candidate.options))
        dtype = next((parameter.dtype for parameter in self.model.parameters()), torch.float32)
        prepared: Any = specializations_of(compiled).subject
        compiled(**self.calls[0])
        validate(
            compiled, prepared, self.calls, recipe.loosest_tolerance(dtype), ValidationSettings(language_model=True)
        )

    def _measure_module(self, compiled: torch.nn.Module, task: TrialTask) -> TrialFacts:
        calls: dict[str, Callable[[], object]] = {EAGER: self._eager_call(task)}
        if not task.candidate.is_eager:
            calls[THUNDER] = partial(compiled, **self.calls[0])
        runs = rounds_for(calls, task.rounds)
        most_threads = task.candidate.threads and max(task.candidate.threads, self.threads)
        timer = timer_of(self.device, most_threads)
        report = measure(calls, MeasurementSettings(runs=runs, warmup=WARMUP, device=self.device, timer=timer))
        times = {timed.name: timed.seconds for timed in report.candidates}
        optimized = times.get(THUNDER, times[EAGER])
        machine = machine_name(self.device)
        facts = TrialFacts(
            eager=times[EAGER],
            candidate_times=optimized,
            requested_rounds=task.rounds,
            machine=machine,
            call=f"call{clock_in_words(self.device, most_threads)}",
        )
        if not task.first:
            return facts
        size = bytes_of(compiled)
        peak = peak_memory_of(partial(compiled, **self.calls[0]), self.device, profile_cpu=True)
        memory = None if peak is None else size + peak
        return facts.model_copy(update={**self._loss(compiled, task.candidate), "size": size, "memory": memory})

    def _eager_call(self, task: TrialTask) -> Callable[[], object]:
        call = partial(self.model, **self.calls[0])
        return call if task.candidate.threads is None else with_threads(call, self.threads)

    def _loss(self, compiled: torch.nn.Module, candidate: Candidate) -> dict[str, object]:
        """Return the loss of the candidate; raise `QualityLost` if it exceeds the bound of a recipe that quantizes."""
        bound = None if candidate.is_eager else find_recipe(candidate.recipes, dict(candidate.options)).loosest_quality
        return vars(
            loss_between(
                lambda number: self.model(**self.calls[number]),
                lambda number: compiled(**self.calls[number]),
                range(len(self.calls)),
                bound if candidate.quantizes else None,
            )
        )
