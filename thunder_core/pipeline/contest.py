"""Measuring a compiled model against its contenders, at every size that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from thunder_core import __version__
from thunder_core.artifact.loading import load
from thunder_core.artifact.read import open_artifact
from thunder_core.benchmark import BenchmarkReport, BenchmarkSuite, measure
from thunder_core.models.load import LoadedModel, load_model
from thunder_core.pipeline.application import apply
from thunder_core.pipeline.calamity import calamities
from thunder_core.pipeline.clock import Clock
from thunder_core.pipeline.planning import sequence_length
from thunder_core.pipeline.prepare import prepare
from thunder_core.pipeline.progress import Progress, Unwatched
from thunder_core.pipeline.purpose import Purpose
from thunder_core.pipeline.rebuild import loaded_from
from thunder_core.pipeline.request import Request
from thunder_core.pipeline.rules import Contest, check_contest

OURS = "thunder"


@dataclass(frozen=True)
class Subject:
    """A model, its compiled twin, and what they are called in a measurement."""

    loaded: LoadedModel
    compiled: torch.nn.Module
    configuration: Mapping[str, str]
    seed: int
    purpose: Purpose

    def call(self, function: Callable[..., Any]) -> Callable[..., object]:
        """What is measured of the model, or of what does the same."""
        return self.purpose.call(function, self.loaded.model)


def _inductor(model: torch.nn.Module) -> Callable[..., Any]:
    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(model, dynamic=False)
    return compiled


CONTENDERS: dict[str, Callable[[torch.nn.Module], Callable[..., Any]]] = {
    "eager": lambda model: model,
    "inductor": _inductor,
}


def bench_model(request: Request, contest: Contest, progress: Progress | None = None) -> BenchmarkSuite:
    """Measure a model under a recipe; sizes are those of the contest, not of the request."""
    check_contest(contest)
    prepared = prepare(request)
    for seq in contest.seqs:
        sequence_length(prepared.loading.config, seq)

    def subject() -> Subject:
        loaded = load_model(prepared.model)
        prepared.recipe.validate_all(loaded.model)
        names = {"model": prepared.model_name, "recipe": prepared.recipe.name}
        return Subject(loaded, apply(prepared, loaded.model), names, prepared.model.seed, Purpose(request.train))

    return _bench(subject, contest, progress)


def bench_artifact(
    folder: Path, contest: Contest, *, device: str | None = None, progress: Progress | None = None
) -> BenchmarkSuite:
    """Measure an artifact against the model that it was made from."""
    check_contest(contest)
    artifact = open_artifact(folder)
    manifest = artifact.manifest

    def subject() -> Subject:
        loaded = loaded_from(artifact, device)
        names = {"model": str(manifest.source.get("name") or manifest.source.get("path") or manifest.recipe)}
        names["recipe"] = manifest.recipe
        return Subject(loaded, load(folder, loaded.model), names, 0, Purpose(manifest.train))

    return _bench(subject, contest, progress)


def _bench(make: Callable[[], Subject], contest: Contest, progress: Progress | None) -> BenchmarkSuite:
    clock = Clock(progress or Unwatched())
    with calamities(lambda: clock.stage or "the start"):
        clock.begin("load")
        subject = make()
        sizes = list(_sizes(subject.loaded, contest))
        with subject.purpose.ready(subject.loaded.model):
            _prepare(subject, sizes, clock)
            reports = [_measured(subject, contest, size, clock) for size in sizes]
        clock.stop()
    return BenchmarkSuite(thunder=__version__, reports=tuple(reports))


def _sizes(loaded: LoadedModel, contest: Contest) -> Iterable[tuple[int, int]]:
    seqs: Sequence[int] = [sequence_length(loaded.config, seq) for seq in contest.seqs]
    return ((batch, seq) for batch in contest.batches for seq in seqs)


def _prepare(subject: Subject, sizes: Sequence[tuple[int, int]], clock: Clock) -> None:
    """Compile for every size at once: other compilers leave hooks in PyTorch that would be traced along."""
    clock.begin("compile")
    for done, size in enumerate(sizes, start=1):
        subject.call(subject.compiled)(**_inputs(subject, size))
        clock.advance(done, len(sizes))


def _inputs(subject: Subject, size: tuple[int, int]) -> dict[str, torch.Tensor]:
    return subject.purpose.inputs(subject.loaded, batch=size[0], seq=size[1], seed=subject.seed)


def _measured(subject: Subject, contest: Contest, size: tuple[int, int], clock: Clock) -> BenchmarkReport:
    batch, seq = size
    loaded = subject.loaded
    inputs = _inputs(subject, size)
    functions = {name: CONTENDERS[name](loaded.model) for name in contest.against} | {OURS: subject.compiled}
    candidates = {name: subject.call(function) for name, function in functions.items()}
    clock.begin(f"warm up {batch} x {seq}")
    for done, candidate in enumerate(candidates.values(), start=1):
        candidate(**inputs)
        clock.advance(done, len(candidates))
    clock.begin(f"measure {batch} x {seq}")
    return measure(
        {name: _call(candidate, inputs) for name, candidate in candidates.items()},
        runs=contest.runs,
        warmup=contest.warmup,
        device=loaded.model.device,
        progress=clock.advance,
        configuration={
            **subject.configuration,
            "dtype": str(loaded.source["dtype"]),
            "batch": str(batch),
            "seq": str(seq),
            **subject.purpose.configuration,
        },
    )


def _call(candidate: Callable[..., Any], inputs: Mapping[str, torch.Tensor]) -> Callable[[], object]:
    return lambda: candidate(**inputs)
