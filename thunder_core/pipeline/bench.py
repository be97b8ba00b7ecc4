"""Measuring a compiled model against its contenders, at every size that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from thunder_core.artifact.consent import NO_CONSENT, Consent
from thunder_core.artifact.loading import load_opened
from thunder_core.artifact.read import Artifact, open_artifact
from thunder_core.artifact.signature import require_authentic
from thunder_core.benchmark import BenchmarkReport, BenchmarkSuite, measure, threads_in_use
from thunder_core.errors import BadOption
from thunder_core.models.load import LoadedModel, load_model
from thunder_core.package import __version__
from thunder_core.pipeline.application import apply
from thunder_core.pipeline.bench_request import OURS, BenchRequest, check_bench_request
from thunder_core.pipeline.clock import Clock
from thunder_core.pipeline.estimate import require_memory
from thunder_core.pipeline.failures import stage_failures
from thunder_core.pipeline.prepare import prepare
from thunder_core.pipeline.progress import Progress, Unwatched
from thunder_core.pipeline.purpose import Purpose
from thunder_core.pipeline.rebuild import loaded_from
from thunder_core.pipeline.request import Request
from thunder_core.pipeline.samples import artifacts_samples, real_samples, sequence_of

Call = Callable[[], object]


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


def bench_model(request: Request, bench_request: BenchRequest, progress: Progress | None = None) -> BenchmarkSuite:
    """Measure a model under a recipe; sizes are those of the bench_request, not of the request."""
    check_bench_request(bench_request)
    prepared = prepare(request)
    data = real_samples(
        "--input",
        bench_request.input,
        lambda: prepared.loading.origin,
        trust_remote_code=request.model.trust_remote_code,
    )
    for seq in bench_request.seqs:
        sequence_of(prepared.loading.config, seq, (data,))
    purpose = Purpose(request.train, data, cut=None not in bench_request.seqs)

    def subject() -> Subject:
        loaded = load_model(prepared.model)
        prepared.recipe.validate_all(loaded.model)
        names = {"model": prepared.model_name, "recipe": prepared.recipe.name}
        return Subject(loaded, apply(prepared, loaded.model), names, prepared.model.seed, purpose)

    return _bench({OURS: subject}, bench_request, progress)


def bench_artifact(
    folder: Path,
    bench_request: BenchRequest,
    *,
    device: str | None = None,
    consent: Consent = NO_CONSENT,
    progress: Progress | None = None,
) -> BenchmarkSuite:
    """Measure an artifact against the model that it was made from; `consent` is what `load` takes as well."""
    check_bench_request(bench_request)
    return _bench(
        {OURS: subject_of(authentic(folder, consent), device, consent, bench_request)}, bench_request, progress
    )


def bench_artifacts(
    first: Path,
    second: Path,
    bench_request: BenchRequest,
    *,
    device: str | None = None,
    consent: Consent = NO_CONSENT,
    progress: Progress | None = None,
) -> BenchmarkSuite:
    """Measure the second artifact against the first, in turn in one process, and contenders beside both.

    Raises `BadOption` for an artifact of training beside one of inference.
    """
    check_bench_request(bench_request, subjects=2)
    artifacts = [authentic(folder, consent) for folder in (first, second)]
    if artifacts[0].manifest.train != artifacts[1].manifest.train:
        raise BadOption(
            f"of {first} and {second} one is for training, and the other is not",
            fix="compare two artifacts that were made for the same purpose",
        )
    names = told_apart(first, second)
    subjects = {
        name: subject_of(artifact, device, consent, bench_request)
        for name, artifact in zip(names, artifacts, strict=True)
    }
    return _bench(subjects, bench_request, progress)


def told_apart(first: Path, second: Path) -> tuple[str, str]:
    """What two folders are called beside each other and contenders: their names, with A and B where they need it."""
    names = first.absolute().name, second.absolute().name
    clear = names[0] != names[1] and not {*names} & {*CONTENDERS}
    return names if clear else (f"A: {names[0]}", f"B: {names[1]}")


def authentic(folder: Path, consent: Consent) -> Artifact:
    """The artifact in a folder, whose signatures have been looked at."""
    artifact = open_artifact(folder)
    require_authentic(artifact, consent)
    return artifact


def subject_of(
    artifact: Artifact, device: str | None, consent: Consent, bench_request: BenchRequest
) -> Callable[[], Subject]:
    """What loads an artifact, and the model that it was made from."""
    manifest = artifact.manifest

    def load_both() -> Subject:
        trusted = consent.trust_remote_code
        data = artifacts_samples("--input", bench_request.input, artifact, trust_remote_code=trusted)
        purpose = Purpose(manifest.train, data, cut=None not in bench_request.seqs)
        loaded = loaded_from(artifact, device, trust_remote_code=consent.trust_remote_code)
        model = str(manifest.source.get("name") or manifest.source.get("path") or manifest.recipe)
        names = {"model": model, "recipe": manifest.recipe}
        return Subject(loaded, load_opened(artifact, loaded.model, consent), names, 0, purpose)

    return load_both


def _bench(
    makers: Mapping[str, Callable[[], Subject]], bench_request: BenchRequest, progress: Progress | None
) -> BenchmarkSuite:
    clock = Clock(progress or Unwatched())
    with (
        stage_failures(lambda: clock.stage or "the start"),
        threads_in_use(bench_request.threads),
        ExitStack() as stack,
    ):
        clock.begin("load")
        subjects = {name: make() for name, make in makers.items()}
        require_one_device(subjects)
        for subject in subjects.values():
            stack.enter_context(subject.purpose.ready(subject.loaded.model))
        sizes = common_sizes(list(subjects.values()), bench_request)
        for subject, (batch, seq) in product(subjects.values(), sizes):
            require_memory(subject.loaded, subject.purpose, batch=batch, seq=seq, seed=subject.seed)
        _prepare(list(subjects.values()), sizes, clock)
        reports = [_measured(subjects, bench_request, size, clock) for size in sizes]
        clock.stop()
    return BenchmarkSuite(thunder=__version__, reports=tuple(reports))


def require_one_device(subjects: Mapping[str, Subject]) -> None:
    """Raise `BadOption` for subjects on different devices."""
    devices = {name: str(subject.loaded.model.device) for name, subject in subjects.items()}
    if len(set(devices.values())) > 1:
        told = ", ".join(f"{name} is on {device}" for name, device in devices.items())
        raise BadOption(f"what runs on different devices is not compared: {told}", fix="give --device")


def common_sizes(subjects: Sequence[Subject], bench_request: BenchRequest) -> list[tuple[int, int]]:
    """Batches and sequence lengths; a length that nobody named is one that all subjects take."""
    data = [one.purpose.data for one in subjects]
    longest = max if any(data) else min  # the longest sample has to fit; else what all take
    lengths = [
        longest(sequence_of(one.loaded.config, seq, (one.purpose.data,)) for one in subjects)
        for seq in bench_request.seqs
    ]
    return [(batch, seq) for batch in bench_request.batches for seq in lengths]


def _prepare(subjects: Sequence[Subject], sizes: Sequence[tuple[int, int]], clock: Clock) -> None:
    """Compile for every size at once: other compilers leave hooks in PyTorch that would be traced along."""
    clock.begin("compile")
    for done, (subject, size) in enumerate(product(subjects, sizes), start=1):
        subject.call(subject.compiled)(**_inputs(subject, size))
        clock.advance(done, len(subjects) * len(sizes))


def _inputs(subject: Subject, size: tuple[int, int]) -> dict[str, torch.Tensor]:
    return subject.purpose.inputs(subject.loaded, batch=size[0], seq=size[1], seed=subject.seed)


def calls_of(subjects: Mapping[str, Subject], bench_request: BenchRequest, size: tuple[int, int]) -> dict[str, Call]:
    """What is called in turn, by name; the first is what the others are compared with.

    That is the first contender where one subject is measured, and the first subject where there are two.
    """
    first = next(iter(subjects.values()))
    given = {name: _inputs(subject, size) for name, subject in subjects.items()}
    rivals = {
        name: _call(first.call(CONTENDERS[name](first.loaded.model)), next(iter(given.values())))
        for name in bench_request.against
    }
    ours = {name: _call(one.call(one.compiled), given[name]) for name, one in subjects.items()}
    return rivals | ours if len(subjects) == 1 else ours | rivals


def _measured(
    subjects: Mapping[str, Subject], bench_request: BenchRequest, size: tuple[int, int], clock: Clock
) -> BenchmarkReport:
    batch, seq = size
    first = next(iter(subjects.values()))
    calls = calls_of(subjects, bench_request, size)
    clock.begin(f"warm up {batch} x {seq}")
    for done, call in enumerate(calls.values(), start=1):
        call()
        clock.advance(done, len(calls))
    clock.begin(f"measure {batch} x {seq}")
    return measure(
        calls,
        runs=bench_request.runs,
        warmup=bench_request.warmup,
        device=first.loaded.model.device,
        progress=clock.advance,
        memory=True,
        configuration={
            **joined_names([subject.configuration for subject in subjects.values()]),
            "dtype": str(first.loaded.source["dtype"]),
            "batch": str(batch),
            "seq": str(seq),
            **first.purpose.configuration,
        },
    )


def joined_names(configurations: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The names of what is measured; of two, both where they differ."""
    return {key: " and ".join(dict.fromkeys(one[key] for one in configurations)) for key in configurations[0]}


def _call(candidate: Callable[..., Any], inputs: Mapping[str, torch.Tensor]) -> Call:
    return lambda: candidate(**inputs)
