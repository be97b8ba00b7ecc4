"""Measure `generate` of a model or an artifact against contenders, for several batch sizes of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from transformers import PretrainedConfig, PreTrainedModel

from thunder_core.foundation.errors import CannotGenerate, WrongInputs
from thunder_core.foundation.package import __version__
from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.artifact.trust.consent import NO_CONSENT, Consent
from thunder_core.workflow.benchmark import BenchmarkSuite, GenerationBenchmark, threads_in_use
from thunder_core.workflow.benchmark.measurement import MeasurementSettings
from thunder_core.workflow.benchmark.report import size_in_words
from thunder_core.workflow.models.inputs.input_names import IDS
from thunder_core.workflow.models.inputs.prompts import random_prompts, require_generation
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.bench import (
    OpenSession,
    distinct_names,
    joined_names,
    model_against,
    open_verified,
    require_one_device,
)
from thunder_core.workflow.pipeline.failures import stage_failures
from thunder_core.workflow.pipeline.generation.artifact_generation import FIX_MAKE_AGAIN
from thunder_core.workflow.pipeline.generation.generation_contenders import CONTENDERS
from thunder_core.workflow.pipeline.generation.generation_speed import (
    Contender,
    Tensors,
    measure_generation,
    time_tokens,
)
from thunder_core.workflow.pipeline.request.bench_request import THUNDER, BenchRequest, check_bench_request
from thunder_core.workflow.pipeline.request.generation_lengths import lengths_of
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.clock import StageClock
from thunder_core.workflow.pipeline.session.prepare import prepare
from thunder_core.workflow.pipeline.session.progress import Progress, SilentProgress
from thunder_core.workflow.pipeline.session.session import Session, open_model, open_saved


@dataclass(frozen=True)
class GenerationSizes:
    """The length of prompts, the number of new tokens, and the batch sizes."""

    prompt_length: int
    new_tokens: int
    batches: tuple[int, ...]


def bench_generation(request: Request, bench_request: BenchRequest, progress: Progress | None = None) -> BenchmarkSuite:
    """Measure `generate` of a model with a recipe, at the sizes of `bench_request`; sizes in `request` are ignored."""
    check_bench_request(bench_request)
    prepared = prepare(request)
    sizes = sizes_for_model(prepared.loading.config, request, bench_request)
    return _bench({THUNDER: lambda: open_model(prepared, Purpose())}, sizes, bench_request, progress)


def bench_artifacts_generation(
    folders: Sequence[Path],
    bench_request: BenchRequest,
    *,
    device: str | None = None,
    consent: Consent = NO_CONSENT,
    progress: Progress | None = None,
) -> BenchmarkSuite:
    """Measure `generate` of one artifact against its original model, or of a second artifact against the first.

    Only the artifacts' own programs run. Raises `CannotGenerate` for an artifact without programs for generation.
    """
    check_bench_request(bench_request, subjects=len(folders))
    artifacts = [open_verified(folder, consent) for folder in folders]
    sizes = common_sizes([sizes_for_artifact(artifact, bench_request) for artifact in artifacts], bench_request)
    names = (THUNDER,) if len(folders) == 1 else distinct_names(folders[0], folders[1])
    openers = {
        name: partial(open_saved, artifact, Purpose(), consent, device=device, strict=True)
        for name, artifact in zip(names, artifacts, strict=True)
    }
    return _bench(openers, sizes, bench_request, progress)


def sizes_for_model(config: PretrainedConfig, request: Request, bench_request: BenchRequest) -> GenerationSizes:
    """Return the requested sizes, or the defaults within the model's number of positions.

    Raises `SequenceTooLong` for sizes that exceed the model's positions.
    """
    lengths = lengths_of(
        config, replace(request, prompt_length=bench_request.prompt_length, new_tokens=bench_request.new_tokens)
    )
    return GenerationSizes(
        lengths.prompt_length,
        lengths.new_tokens,
        named_batches(bench_request) or tuple(dict.fromkeys((1, lengths.batch))),
    )


def sizes_for_artifact(artifact: Artifact, bench_request: BenchRequest) -> GenerationSizes:
    """Return the requested sizes; the default is an artifact's largest sizes, for its largest batch and for one prompt.

    Raises `CannotGenerate` for an artifact that was not made for generation, and `WrongInputs` for unsupported sizes.
    """
    folder, generation = artifact.folder, artifact.manifest.generation
    if generation is None:
        raise CannotGenerate(
            f"{folder} has programs for single calls, which `generate` does not use", fix=FIX_MAKE_AGAIN
        )
    served = generation.lengths
    prompt, new = bench_request.prompt_length or served.prompt_length, bench_request.new_tokens or served.new_tokens
    batches = named_batches(bench_request) or tuple(dict.fromkeys((1, served.batch)))
    named = {"--prompt-length": (prompt, served.prompt_length), "--new-tokens": (new, served.new_tokens)}
    for option, (value, most) in {**named, "--batch": (max(batches), served.batch)}.items():
        if value > most:
            raise WrongInputs(
                f"{option} is {value}, but {folder} generates for {served}",
                fix=f"set {option} to at most {most}, or {FIX_MAKE_AGAIN}",
            )
    return GenerationSizes(prompt, new, batches)


def common_sizes(sizes: Sequence[GenerationSizes], bench_request: BenchRequest) -> GenerationSizes:
    """Return the sizes at which all artifacts are measured: the requested or the smallest sizes."""
    batches = tuple(batch for batch in sizes[0].batches if all(batch in size.batches for size in sizes)) or (1,)
    return GenerationSizes(
        min(size.prompt_length for size in sizes),
        min(size.new_tokens for size in sizes),
        named_batches(bench_request) or batches,
    )


def named_batches(bench_request: BenchRequest) -> tuple[int, ...]:
    """Return the requested batch sizes."""
    return tuple(batch for batch in bench_request.batches if batch is not None)


def prompt_of(session: Session, batch: int, length: int) -> Tensors:
    """Return the measured prompts: random, and of equal length."""
    return random_prompts(session.loaded, batch=batch, length=length, seed=session.seed)


def _bench(
    openers: Mapping[str, OpenSession], sizes: GenerationSizes, bench_request: BenchRequest, progress: Progress | None
) -> BenchmarkSuite:
    clock = StageClock(progress or SilentProgress())
    with (
        stage_failures(lambda: clock.stage or "the start"),
        threads_in_use(bench_request.threads),
        quiet_transformers(),
        ExitStack() as stack,
    ):
        clock.begin("load")
        sessions = {name: opener() for name, opener in openers.items()}
        require_one_device(sessions)
        for session in sessions.values():
            require_generation(session.loaded)
            session.require_memory_for(InputSize(max(sizes.batches), sizes.prompt_length))
            stack.enter_context(session.ready())
        first = next(iter(sessions.values()))
        prompts = {batch: prompt_of(first, batch, sizes.prompt_length) for batch in sizes.batches}
        _compile(sessions, prompts, sizes.new_tokens, clock)
        contenders = contenders_of(sessions, bench_request)
        reports = [
            _measure(sessions, contenders, prompt, sizes.new_tokens, bench_request, clock)
            for prompt in prompts.values()
        ]
        clock.stop()
    return BenchmarkSuite(thunder=__version__, reports=tuple(reports))


def _compile(
    sessions: Mapping[str, Session], prompts: Mapping[int, Tensors], new_tokens: int, clock: StageClock
) -> None:
    """Compile for all batches before the contenders compile; afterwards, hooks of their compilers would be traced."""
    clock.begin("compile")
    calls = [(session, prompt) for session in sessions.values() for prompt in prompts.values()]
    for done, (session, prompt) in enumerate(calls, start=1):
        time_tokens(Contender(session.compiled), prompt, new_tokens)
        clock.advance(done, len(calls))


def contenders_of(sessions: Mapping[str, Session], bench_request: BenchRequest) -> dict[str, Contender]:
    """Return the candidates by name, in the order of `bench.calls_of`; the first candidate is the baseline."""
    first = next(iter(sessions.values()))
    baselines = {
        name: CONTENDERS[name](cast(PreTrainedModel, model_against(first, name)))
        for name in bench_request.contenders(len(sessions))
    }
    own_contenders = {name: Contender(session.compiled) for name, session in sessions.items()}
    return baselines | own_contenders if len(sessions) == 1 else own_contenders | baselines


def _measure(
    sessions: Mapping[str, Session],
    contenders: Mapping[str, Contender],
    prompt: Tensors,
    new_tokens: int,
    bench_request: BenchRequest,
    clock: StageClock,
) -> GenerationBenchmark:
    first = next(iter(sessions.values()))
    batch, length = prompt[IDS].shape
    names = joined_names([session.names for session in sessions.values()])
    size = size_in_words({"batch": str(batch), "size": f"{length} + {new_tokens} tokens"})
    clock.begin(f"warm up {size}")
    begun: Callable[[], None] = partial(clock.begin, f"measure {size}")
    return measure_generation(
        contenders,
        prompt,
        new_tokens,
        MeasurementSettings(
            runs=bench_request.runs,
            warmup=bench_request.warmup,
            device=first.device,
            configuration={**names, "dtype": str(first.loaded.source["dtype"])},
            memory=True,
            progress=clock.advance,
        ),
        warmed=begun,
    )
