"""Measuring `generate` of a model against its contenders, with prompts in batches of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from transformers import PretrainedConfig

from thunder_core.benchmark import BenchmarkSuite, GenerationBenchmark, threads_in_use
from thunder_core.benchmark.report import size_in_words
from thunder_core.errors import CannotGenerate, SequenceTooLong
from thunder_core.models.input_size import InputSize
from thunder_core.models.library_output import quiet_transformers
from thunder_core.models.load import LoadedModel
from thunder_core.models.random_inputs import RandomInputs
from thunder_core.models.sequence import longest_sequence
from thunder_core.package import __version__
from thunder_core.pipeline.bench import Opener, joined_names, require_one_device
from thunder_core.pipeline.bench_request import OURS, BenchRequest, check_bench_request
from thunder_core.pipeline.clock import StageClock
from thunder_core.pipeline.failures import stage_failures
from thunder_core.pipeline.generation_contenders import CONTENDERS
from thunder_core.pipeline.generation_speed import Contender, Tensors, measure_generation, timed_tokens
from thunder_core.pipeline.prepare import prepare
from thunder_core.pipeline.progress import Progress, Unwatched
from thunder_core.pipeline.purpose import Purpose
from thunder_core.pipeline.request import Request
from thunder_core.pipeline.session import Session, open_model

USUAL_LENGTH = 128  # tokens, of a prompt and of what follows it
USUAL_BATCHES = (1, 8)
SHORTER = "give fewer tokens: --prompt-length, --new-tokens"


@dataclass(frozen=True)
class GenerationSizes:
    """The tokens of a prompt and of what follows it, and the numbers of prompts that are given together."""

    prompt_length: int
    new_tokens: int
    batches: tuple[int, ...]


def bench_generation(request: Request, bench_request: BenchRequest, progress: Progress | None = None) -> BenchmarkSuite:
    """Measure `generate` of a model under a recipe; sizes are those of the bench_request, not of the request."""
    check_bench_request(bench_request)
    prepared = prepare(request)
    sizes = sizes_for_model(prepared.loading.config, bench_request)
    return _bench({OURS: lambda: open_model(prepared, Purpose())}, sizes, bench_request, progress)


def sizes_for_model(config: PretrainedConfig, asked: BenchRequest) -> GenerationSizes:
    """The sizes that were asked for, or the usual ones as far as a model has positions for them.

    Raises `SequenceTooLong` for those that it was not built for.
    """
    most, apart = longest_sequence(config), bool(config.is_encoder_decoder)
    usual = USUAL_LENGTH if most is None else max(1, min(USUAL_LENGTH, most if apart else most // 2))
    prompt, new = asked.prompt_length or usual, asked.new_tokens or usual
    needed = max(prompt, new) if apart else prompt + new
    if most is not None and needed > most:
        raise SequenceTooLong(
            f"prompts of {prompt} tokens and {new} new ones are more than the {most} tokens that the model was built "
            "for",
            fix=SHORTER,
        )
    return GenerationSizes(prompt, new, named_batches(asked) or USUAL_BATCHES)


def named_batches(asked: BenchRequest) -> tuple[int, ...]:
    """The numbers of prompts that were asked for."""
    return tuple(batch for batch in asked.batches if batch is not None)


def require_generation(loaded: LoadedModel) -> None:
    """Raise `CannotGenerate` for a model that goes on with no text, or not by tokens alone."""
    model = loaded.model
    can_generate = bool(getattr(model, "can_generate", lambda: False)())
    if can_generate and model.main_input_name == "input_ids":
        return
    what = f"is prompted by {model.main_input_name}, not by a text" if can_generate else "generates no text"
    raise CannotGenerate(
        f"this {type(model).__name__} {what}", fix="name a language model, or leave --task generate out"
    )


def drawn_prompts(session: Session, batch: int, length: int) -> Tensors:
    """Seeded prompts of ordinary tokens and their mask, [batch, length] int64, on the model's device."""
    loaded = session.loaded
    ids = RandomInputs.seeded(loaded.config, batch=batch, seq=length, seed=session.seed).tokens(length)
    return {"input_ids": ids.to(loaded.model.device), "attention_mask": ids.new_ones(ids.shape).to(loaded.model.device)}


def _bench(
    openers: Mapping[str, Opener], sizes: GenerationSizes, bench_request: BenchRequest, progress: Progress | None
) -> BenchmarkSuite:
    clock = StageClock(progress or Unwatched())
    with (
        stage_failures(lambda: clock.stage or "the start"),
        threads_in_use(bench_request.threads),
        quiet_transformers(),
        ExitStack() as stack,
    ):
        clock.begin("load")
        sessions = {name: opened() for name, opened in openers.items()}
        require_one_device(sessions)
        for session in sessions.values():
            require_generation(session.loaded)
            session.require_memory_for(InputSize(max(sizes.batches), sizes.prompt_length))
            stack.enter_context(session.ready())
        first = next(iter(sessions.values()))
        prompts = {batch: drawn_prompts(first, batch, sizes.prompt_length) for batch in sizes.batches}
        _compile(sessions, prompts, sizes.new_tokens, clock)
        contenders = contenders_of(sessions, bench_request)
        reports = [
            _measured(sessions, contenders, one, sizes.new_tokens, bench_request, clock) for one in prompts.values()
        ]
        clock.stop()
    return BenchmarkSuite(thunder=__version__, reports=tuple(reports))


def _compile(
    sessions: Mapping[str, Session], prompts: Mapping[int, Tensors], new_tokens: int, clock: StageClock
) -> None:
    """Generate with every batch first: other compilers leave hooks in PyTorch that would be traced along."""
    clock.begin("compile")
    calls = [(session, prompt) for session in sessions.values() for prompt in prompts.values()]
    for done, (session, prompt) in enumerate(calls, start=1):
        timed_tokens(Contender(session.compiled), prompt, new_tokens)
        clock.advance(done, len(calls))


def contenders_of(sessions: Mapping[str, Session], bench_request: BenchRequest) -> dict[str, Contender]:
    """The contenders by name; the first is the one that the others are compared with, as for calls."""
    model = next(iter(sessions.values())).loaded.model
    others = {name: CONTENDERS[name](model) for name in bench_request.contenders(len(sessions))}
    ours = {name: Contender(session.compiled) for name, session in sessions.items()}
    return others | ours if len(sessions) == 1 else ours | others


def _measured(
    sessions: Mapping[str, Session],
    contenders: Mapping[str, Contender],
    prompt: Tensors,
    new_tokens: int,
    bench_request: BenchRequest,
    clock: StageClock,
) -> GenerationBenchmark:
    first = next(iter(sessions.values()))
    batch, length = prompt["input_ids"].shape
    names = joined_names([session.names for session in sessions.values()])
    told = size_in_words({"batch": str(batch), "size": f"{length} + {new_tokens} tokens"})
    clock.begin(f"warm up {told}")
    begun: Callable[[], None] = partial(clock.begin, f"measure {told}")
    return measure_generation(
        contenders,
        prompt,
        new_tokens,
        runs=bench_request.runs,
        warmup=bench_request.warmup,
        device=first.device,
        configuration={**names, "dtype": str(first.loaded.source["dtype"])},
        warmed=begun,
        progress=clock.advance,
    )
