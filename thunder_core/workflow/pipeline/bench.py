"""Measure a compiled model against its contenders, at every requested size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from thunder_core.foundation.errors import BadOption, WrongInputs
from thunder_core.foundation.package import __version__
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.artifact.format.signature import require_authentic
from thunder_core.workflow.artifact.trust.consent import NO_CONSENT, Consent
from thunder_core.workflow.benchmark import BenchmarkReport, BenchmarkSuite, measure, threads_in_use
from thunder_core.workflow.benchmark.measurement import MeasurementSettings
from thunder_core.workflow.benchmark.report import size_in_words
from thunder_core.workflow.models.inputs.size_words import require_tokens
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.failures import stage_failures
from thunder_core.workflow.pipeline.request.bench_request import (
    INDUCTOR_MODES,
    PREPARED,
    THUNDER,
    BenchRequest,
    check_bench_request,
)
from thunder_core.workflow.pipeline.request.purpose import Purpose, purpose_of
from thunder_core.workflow.pipeline.request.ranges import limited_size
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.samples import artifacts_samples, real_samples, sequence_of
from thunder_core.workflow.pipeline.session.clock import StageClock
from thunder_core.workflow.pipeline.session.dynamic import points_of
from thunder_core.workflow.pipeline.session.prepare import prepare
from thunder_core.workflow.pipeline.session.progress import Progress, SilentProgress
from thunder_core.workflow.pipeline.session.session import Session, open_model, open_saved

Call = Callable[[], object]
OpenSession = Callable[[], Session]


def inductor(model: torch.nn.Module, mode: str | None = None) -> Callable[..., Any]:
    """Return a model compiled by `torch.compile` for constant sizes; `mode` None is torch.compile's default mode."""
    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(model, dynamic=False, mode=mode)
    return compiled


CONTENDERS: dict[str, Callable[[torch.nn.Module], Callable[..., Any]]] = {
    "eager": lambda model: model,
    PREPARED: lambda model: model,
    "inductor": inductor,
    **{f"inductor-{mode}": partial(inductor, mode=mode) for mode in INDUCTOR_MODES},
}


def bench_model(request: Request, bench_request: BenchRequest, progress: Progress | None = None) -> BenchmarkSuite:
    """Measure a model with a recipe, at the sizes of `bench_request`; the sizes of `request` are ignored."""
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
    purpose = Purpose(request.train, data, None not in bench_request.seqs, padded=prepared.pads_texts)
    return _bench({THUNDER: lambda: open_model(prepared, purpose)}, bench_request, progress)


def bench_artifact(
    folder: Path,
    bench_request: BenchRequest,
    *,
    device: str | None = None,
    consent: Consent = NO_CONSENT,
    progress: Progress | None = None,
) -> BenchmarkSuite:
    """Measure an artifact against the model that it was made from.

    `consent` has the arguments of `load` about trust.
    """
    check_bench_request(bench_request)
    opener = partial(open_for_bench, open_verified(folder, consent), device, consent, bench_request)
    return _bench({THUNDER: opener}, bench_request, progress)


def bench_artifacts(
    first: Path,
    second: Path,
    bench_request: BenchRequest,
    *,
    device: str | None = None,
    consent: Consent = NO_CONSENT,
    progress: Progress | None = None,
) -> BenchmarkSuite:
    """Measure two artifacts and the contenders in turn in one process; the first artifact is the baseline.

    Raises `BadOption` if one artifact is for training and the other for inference.
    """
    check_bench_request(bench_request, subjects=2)
    artifacts = [open_verified(folder, consent) for folder in (first, second)]
    if artifacts[0].manifest.train != artifacts[1].manifest.train:
        raise BadOption(
            f"one of {first} and {second} is for training, the other is not",
            fix="compare two artifacts that were made for the same purpose",
        )
    openers = [partial(open_for_bench, artifact, device, consent, bench_request) for artifact in artifacts]
    return _bench(dict(zip(distinct_names(first, second), openers, strict=True)), bench_request, progress)


def distinct_names(first: Path, second: Path) -> tuple[str, str]:
    """Return the names of two folders; A and B are added if the names are equal, or equal to a contender's name."""
    names = first.absolute().name, second.absolute().name
    are_distinct = names[0] != names[1] and not {*names} & {*CONTENDERS}
    return names if are_distinct else (f"A: {names[0]}", f"B: {names[1]}")


def open_verified(folder: Path, consent: Consent) -> Artifact:
    """Open the artifact in a folder, and check its signatures."""
    artifact = open_artifact(folder)
    require_authentic(artifact, consent)
    return artifact


def open_for_bench(artifact: Artifact, device: str | None, consent: Consent, bench_request: BenchRequest) -> Session:
    """Open a session of an artifact, with random inputs or the inputs of the named file; it traces nothing."""
    if artifact.manifest.generation is not None:
        raise BadOption(
            f"{artifact.folder} was made for generation, but this benchmark measures single calls",
            fix="use --task generate",
        )
    data = artifacts_samples("--input", bench_request.input, artifact, trust_remote_code=consent.trust_remote_code)
    purpose = purpose_of(artifact.manifest, data, cut=None not in bench_request.seqs)
    return open_saved(artifact, purpose, consent, device=device, strict=True)


def _bench(
    openers: Mapping[str, OpenSession], bench_request: BenchRequest, progress: Progress | None
) -> BenchmarkSuite:
    clock = StageClock(progress or SilentProgress())
    with (
        stage_failures(lambda: clock.stage or "the start"),
        threads_in_use(bench_request.threads),
        ExitStack() as stack,
    ):
        clock.begin("load")
        sessions = {name: opener() for name, opener in openers.items()}
        require_one_device(sessions)
        for session in sessions.values():
            stack.enter_context(session.ready())
        sizes = common_sizes(sessions, bench_request)
        for session, size in product(sessions.values(), sizes):
            session.require_memory_for(size)
        _compile(list(sessions.values()), sizes, clock)
        reports = [_measure(sessions, bench_request, size, clock) for size in sizes]
        clock.stop()
    return BenchmarkSuite(thunder=__version__, reports=tuple(reports))


def require_one_device(sessions: Mapping[str, Session]) -> None:
    """Raise `BadOption` for sessions on different devices."""
    devices = {name: str(session.device) for name, session in sessions.items()}
    if len(set(devices.values())) > 1:
        placements = ", ".join(f"{name} is on {device}" for name, device in devices.items())
        raise BadOption(f"contenders on different devices cannot be compared: {placements}", fix="set --device")


def common_sizes(sessions: Mapping[str, Session], bench_request: BenchRequest) -> list[InputSize]:
    """Return the sizes to measure: the requested sizes, or by default sizes that all artifacts accept.

    For a range that all artifacts support, the default sizes are its ends and a size between them, unless the inputs
    are real samples.
    """
    batches, lengths = bench_request.batches, bench_request.seqs
    if None in batches:
        batches = (recorded_size("batch", sessions) or 1,)
    for session in sessions.values() if None not in lengths else ():
        require_tokens(session.loaded.config)
    if None in lengths:
        lengths = (recorded_size("seq", sessions),)
    is_requested = dict.fromkeys(InputSize._fields, False)
    is_requested |= {"batch": None not in bench_request.batches, "seq": None not in bench_request.seqs}
    sequences = [_common_sequence(list(sessions.values()), length) for length in lengths]
    optional_sizes = traced_other_sizes(sessions)
    sizes = [InputSize(batch or 1, sequence, **optional_sizes) for batch, sequence in product(batches, sequences)]
    supported = dict.fromkeys(supported_size(size, list(sessions.values()), is_requested) for size in sizes)
    ranges = {name: ends for name, ends in common_ranges(list(sessions.values())).items() if not is_requested[name]}
    are_random = not any(session.purpose.data for session in sessions.values())
    return list(dict.fromkeys(point for size in supported for point in points_of(ranges if are_random else {}, size)))


def traced_other_sizes(sessions: Mapping[str, Session]) -> dict[str, int]:
    """Return the sizes of the cache and of images, which all artifacts must share unless they support ranges.

    Within a range, the size of the last artifact is used. Raises `BadOption` if only some artifacts have such a size,
    or if their sizes differ.
    """
    traced = {subject: session.traced_size for subject, session in sessions.items() if session.traced_size}
    optional_sizes = {name: size for traced_size in traced.values() for name, size in traced_size.other_sizes.items()}
    for name in optional_sizes:
        without = [subject for subject, traced_size in traced.items() if name not in traced_size.stated]
        if without:
            raise BadOption(
                f"artifacts with and without a {name} cannot be compared: {', '.join(without)} has none",
                fix=f"make both with --{name}, or both without",
            )
    return optional_sizes | {
        name: size for name in optional_sizes if (size := recorded_size(name, sessions)) is not None
    }


def common_ranges(sessions: Sequence[Session]) -> dict[str, tuple[int, int]]:
    """Return the ranges of sizes that all sessions support, if they have more than one size."""
    ranges: dict[str, tuple[int, int]] = {}
    for name in sessions[0].ranges:
        ends = [session.ranges[name] for session in sessions if name in session.ranges]
        lower, upper = max(lower for lower, _ in ends), min(upper for _, upper in ends)
        if len(ends) == len(sessions) and lower < upper:
            ranges[name] = (lower, upper)
    return ranges


def recorded_size(name: str, sessions: Mapping[str, Session]) -> int | None:
    """Return the size of a dimension in all artifacts; None if no artifact records the size without a range.

    Raises `BadOption` for artifacts of different sizes.
    """
    sizes_by_subject = {
        subject: getattr(session.traced_size, name)
        for subject, session in sessions.items()
        if session.traced_size is not None and name not in session.ranges
    }
    if len(set(sizes_by_subject.values())) > 1:
        sizes_in_words = ", ".join(f"{subject} for {name} {size}" for subject, size in sizes_by_subject.items())
        raise BadOption(
            f"artifacts for inputs of different sizes cannot be compared: {sizes_in_words}",
            fix=f"make both with the same --{name}, or with a range that covers both sizes: --dynamic {name}=a:b",
        )
    return next(iter(sizes_by_subject.values()), None)


def _common_sequence(sessions: Sequence[Session], requested: int | None) -> int:
    """Return the requested length; otherwise a length that all sessions accept, or the longest sample's length."""
    lengths = [
        sequence_of(session.loaded.config, requested, (session.purpose.data,), session.usual_sequence)
        for session in sessions
    ]
    return max(lengths) if any(session.purpose.data for session in sessions) else min(lengths)


def supported_size(size: InputSize, sessions: Sequence[Session], is_requested: Mapping[str, bool]) -> InputSize:
    """Return the size with each dimension limited to the artifacts' ranges, unless the user requested the dimension.

    Raises `BadOption` for a requested size outside a range.
    """
    for session in sessions:
        changes = {
            name: limited_size(session.ranges, name, getattr(size, name), is_requested=is_requested[name])
            for name in session.ranges
        }
        size = size._replace(**changes)
    return size


def _compile(sessions: Sequence[Session], sizes: Sequence[InputSize], clock: StageClock) -> None:
    """Compile for all sizes before the contenders compile; afterwards, hooks of their compilers would be traced."""
    clock.begin("compile")
    for done, (session, size) in enumerate(product(sessions, sizes), start=1):
        with add_fix_to_refusals(session, size):
            session.call(session.inputs(size))
        clock.advance(done, len(sessions) * len(sizes))


@contextmanager
def add_fix_to_refusals(session: Session, size: InputSize) -> Iterator[None]:
    """If no program of an artifact accepts the inputs, add to the error that a benchmark does not trace, and a fix."""
    try:
        yield
    except WrongInputs as error:
        traced_size = session.traced_size
        if traced_size is None or traced_size == size:
            raise
        raise WrongInputs(
            f"{error.what}; the benchmark measures the artifact, so nothing is traced for inputs of "
            f"{session.size_in_words(size)}",
            fix=f"leave out --batch and --seq to measure {session.size_in_words(traced_size)}, or make an artifact for "
            "this size or for a range of sizes: thunder optimize --dynamic seq=a:b",
        ) from error


def calls_of(sessions: Mapping[str, Session], bench_request: BenchRequest, size: InputSize) -> Mapping[str, Call]:
    """Return the candidates of the measurement by name; the others are compared with the first candidate.

    For one session, the contenders come first. For two sessions, the sessions come first.
    """
    first = next(iter(sessions.values()))
    inputs = {name: session.inputs(size) for name, session in sessions.items()}
    contenders = {
        name: partial(first.call_of(CONTENDERS[name](model_against(first, name))), **next(iter(inputs.values())))
        for name in bench_request.contenders(len(sessions))
    }
    own_contenders = {
        name: partial(session.call_of(session.compiled), **inputs[name]) for name, session in sessions.items()
    }
    return contenders | own_contenders if len(sessions) == 1 else own_contenders | contenders


def model_against(session: Session, contender: str) -> torch.nn.Module:
    """Return the model for a contender: as loaded, or as the recipe's transforms have prepared it.

    Raises `BadOption` for the contender `prepared` if the prepared model is the loaded model, as in a training step.
    """
    if contender != PREPARED:
        return session.original
    if session.purpose.train or not session.has_original:
        why = (
            "is always a contender of a training step"
            if session.purpose.train
            else f"is the same as eager: {session.names['recipe']} does not prepare the model"
        )
        raise BadOption(f"--against {PREPARED} {why}", fix="use --against eager")
    return session.model


def _measure(
    sessions: Mapping[str, Session], bench_request: BenchRequest, size: InputSize, clock: StageClock
) -> BenchmarkReport:
    calls = calls_of(sessions, bench_request, size)
    first = next(iter(sessions.values()))
    configuration = {**first.configuration(size), **joined_names([session.names for session in sessions.values()])}
    clock.begin(f"warm up {size_in_words(configuration)}")
    for done, call in enumerate(calls.values(), start=1):
        call()
        clock.advance(done, len(calls))
    clock.begin(f"measure {size_in_words(configuration)}")
    return measure(
        calls,
        MeasurementSettings(
            runs=bench_request.runs,
            warmup=bench_request.warmup,
            device=first.device,
            progress=clock.advance,
            memory=True,
            release=partial(_release, sessions.values()),
            configuration=configuration,
        ),
    )


def _release(sessions: Iterable[Session]) -> None:
    for session in sessions:
        session.release()


def joined_names(names: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the names of the measured models and recipes, joined if two differ."""
    return {key: " and ".join(dict.fromkeys(name[key] for name in names)) for key in names[0]}
