"""Measure `generate`: contenders run in turn, a streamer times each token, and the tokens are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from thunder_core.foundation.errors import CannotGenerate
from thunder_core.workflow.benchmark import BenchmarkReport, measure
from thunder_core.workflow.benchmark.generation import GENERATION, GeneratedTokens, GenerationBenchmark
from thunder_core.workflow.benchmark.measurement import MeasurementSettings, do_nothing
from thunder_core.workflow.benchmark.report import FIRST_TOKEN, NEXT_TOKEN
from thunder_core.workflow.benchmark.statistics import describe_candidate
from thunder_core.workflow.benchmark.timing import HOST_RESOLUTION
from thunder_core.workflow.models.inputs.input_names import IDS

Tensors = Mapping[str, torch.Tensor]
Rounds = Mapping[str, Sequence[Sequence[float]]]  # of each contender: the seconds of all tokens in each round

# Options for greedy generation up to the last requested token; they override the model's sampling and stopping.
GREEDY: Mapping[str, object] = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "temperature": None,
    "top_p": None,
    "top_k": None,
    "eos_token_id": None,
    "max_time": None,
    "return_dict_in_generate": False,
}


@dataclass(frozen=True, eq=False)
class Contender:
    """A model whose `generate` is measured, with its own arguments, such as another kind of cache."""

    model: Any
    options: Mapping[str, object] = field(default_factory=dict)


class TokenClock(BaseStreamer):
    """Records the time of each token: `generate` passes the prompt first, and then every token on the host."""

    def __init__(self) -> None:
        """Start the clock."""
        self.moments: list[float] = []
        self.begin = time.perf_counter()

    def put(self, value: torch.Tensor) -> None:  # noqa: ARG002 - the library passes it
        """Record the time at which `generate` passes the next token of each prompt."""
        self.moments.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing: the last token has been recorded."""

    @property
    def seconds(self) -> list[float]:
        """The time of each token since the previous token; for the first token, since the call."""
        moments = [self.begin, *self.moments[1:]]
        return [max(after - before, HOST_RESOLUTION) for before, after in pairwise(moments)]


@dataclass(eq=False)
class TokenTimes:
    """Calls of one contender's `generate`: the seconds of all tokens in each call, and the tokens of the last call."""

    contender: Contender
    prompt: Tensors
    new_tokens: int
    rounds: list[list[float]] = field(default_factory=list)
    tokens: torch.Tensor | None = None

    def __call__(self) -> None:
        """Generate once; raise `CannotGenerate` if the number of tokens is wrong."""
        self.tokens, seconds = time_tokens(self.contender, self.prompt, self.new_tokens)
        self.rounds.append(seconds)


def greedy_options(new_tokens: int) -> dict[str, Any]:
    """Return the options of `generate` for greedy generation of a number of tokens."""
    return {**GREEDY, "pad_token_id": 0, "max_new_tokens": new_tokens}


def time_tokens(contender: Contender, prompt: Tensors, new_tokens: int) -> tuple[torch.Tensor, list[float]]:
    """Return the generated tokens, [batch, new_tokens] int64 on the CPU, and the seconds of each token.

    Raises `CannotGenerate` if `generate` returns more or fewer tokens than requested.
    """
    clock = TokenClock()
    generated = contender.model.generate(**prompt, **greedy_options(new_tokens), streamer=clock, **contender.options)
    if len(clock.seconds) != new_tokens:
        raise CannotGenerate(
            f"{type(contender.model).__name__}.generate streamed {len(clock.seconds)} tokens instead of {new_tokens}",
            fix="check generation_config.json: its settings must not stop early, and must allow streaming",
        )
    return generated[:, -new_tokens:].cpu(), clock.seconds


def measure_generation(
    contenders: Mapping[str, Contender],
    prompt: Tensors,
    new_tokens: int,
    settings: MeasurementSettings,
    warmed: Callable[[], object] = do_nothing,
) -> GenerationBenchmark:
    """Measure greedy `generate` calls of contenders in turn; the first contender is the baseline of the others.

    `prompt` has `input_ids`, [batch, length] int64, and other keyword arguments of `generate`. The batch size and the
    lengths are added to the configuration of the settings. Each contender generates once before any run is timed, and
    then `warmed` is called. A clock on the host measures when each token arrives. The timer of the settings measures
    the complete call.

    Raises `CannotGenerate` if a contender does not return the requested tokens, and `BadOption` for fewer than two
    runs.
    """
    batch, length = prompt[IDS].shape
    facts = {**settings.configuration, "batch": str(batch), "size": f"{length} + {new_tokens} tokens"}
    recorders = {name: TokenTimes(contender, prompt, new_tokens) for name, contender in contenders.items()}
    for recorder in recorders.values():
        recorder()
    warmed()
    benchmark = measure(recorders, replace(settings, configuration={**facts, "call": GENERATION}))
    return generation_benchmark(benchmark, recorders, length, new_tokens)


def generation_benchmark(
    benchmark: BenchmarkReport, recorders: Mapping[str, TokenTimes], prompt_length: int, new_tokens: int
) -> GenerationBenchmark:
    """Return the report of complete calls with the times of their tokens, without the first call and the warm-up."""
    measured = slice(1 + benchmark.warmup, 1 + benchmark.warmup + benchmark.runs)
    rounds = {name: recorder.rounds[measured] for name, recorder in recorders.items()}
    first = {name: [seconds[0] for seconds in rounds_of] for name, rounds_of in rounds.items()}
    following = {
        name: [fmean(seconds[1:]) for seconds in rounds_of] for name, rounds_of in rounds.items() if new_tokens > 1
    }
    return GenerationBenchmark(
        **dict(benchmark),
        prompt_length=prompt_length,
        new_tokens=new_tokens,
        first_token=part_of(benchmark, FIRST_TOKEN, first),
        next_token=part_of(benchmark, NEXT_TOKEN, following) if following else None,
        texts=tuple(compare_tokens(recorders, rounds)),
    )


def part_of(benchmark: BenchmarkReport, call: str, seconds: Mapping[str, list[float]]) -> BenchmarkReport:
    """Return the report of one part of each call, such as the first token, from its seconds in each round."""
    first = next(iter(seconds.values()))
    return BenchmarkReport(
        machine=benchmark.machine,
        device=benchmark.device,
        configuration={**benchmark.configuration, "call": call},
        runs=benchmark.runs,
        warmup=benchmark.warmup,
        load=benchmark.load,
        candidates=tuple(describe_candidate(name, times, first, None) for name, times in seconds.items()),
    )


def compare_tokens(recorders: Mapping[str, TokenTimes], rounds: Rounds) -> list[GeneratedTokens]:
    """Compare each contender's tokens with the first contender's, and add the median time of each token."""
    expected = next(iter(recorders.values())).tokens
    return [
        generated_tokens(name, recorder.tokens, expected, [median(times) for times in zip(*rounds[name], strict=True)])
        for name, recorder in recorders.items()
        if recorder.tokens is not None and expected is not None
    ]


def generated_tokens(
    name: str, tokens: torch.Tensor, expected: torch.Tensor, seconds: Sequence[float]
) -> GeneratedTokens:
    """Return the facts about tokens, [batch, new_tokens], compared with the expected tokens."""
    differs = (tokens != expected).any(dim=0).nonzero()
    return GeneratedTokens(
        name=name,
        seconds=tuple(seconds),
        equal=(tokens == expected).double().mean().item(),
        differs_at=int(differs[0]) + 1 if len(differs) else None,
    )
