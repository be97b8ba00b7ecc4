"""Every mode of `generate` gives eager PyTorch's tokens on a compiled model, which is unmodified otherwise."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import thunder_core as thunder
from tests.generation.models import Uncompiled, greedy, model_of, prompt_of

Mode = Callable[[Any], Any]


class Streamer(transformers.generation.BaseStreamer):  # type: ignore[misc]
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.given.append(value.tolist())

    def end(self) -> None:
        self.given.append("end")


class StopsAt(transformers.StoppingCriteria):  # type: ignore[misc]
    """Ends a text at a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


class Forbids(transformers.LogitsProcessor):  # type: ignore[misc]
    """Forbids every second token."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forbidden = scores.clone()
        forbidden[:, ::2] = -torch.inf
        return forbidden


def sampled(model: Any, **options: Any) -> Any:
    torch.manual_seed(3)
    return greedy(model, prompt_of(2, 7), do_sample=True, temperature=0.8, top_k=20, top_p=0.9, **options)


def padded(model: Any, **options: Any) -> Any:
    prompt = prompt_of(3, 7)
    mask = torch.ones_like(prompt)
    for row, count in enumerate((3, 0, 1)):
        prompt[row, :count] = mask[row, :count] = 0
    return greedy(model, prompt, attention_mask=mask, **options)


def streamed(model: Any) -> Any:
    streamer = Streamer()
    return greedy(model, prompt_of(1, 7), streamer=streamer), streamer.given


def scored(model: Any) -> Any:
    found = greedy(model, prompt_of(2, 7), return_dict_in_generate=True, output_scores=True, output_logits=True)
    return found.sequences, found.scores, found.logits


MODES: dict[str, Mode] = {
    "sampling": sampled,
    "several for a prompt": lambda model: sampled(model, num_return_sequences=2),
    "beams": lambda model: greedy(model, prompt_of(2, 7), num_beams=3),
    "beams that sample": lambda model: sampled(model, num_beams=2),
    "padded left": padded,
    "padded left, with beams": lambda model: padded(model, num_beams=2),
    "streamer": streamed,
    "stopping criteria": lambda model: greedy(model, prompt_of(2, 7), stopping_criteria=[StopsAt(11)]),
    "logits processors": lambda model: greedy(
        model, prompt_of(2, 7), logits_processor=[Forbids()], repetition_penalty=1.2, no_repeat_ngram_size=2
    ),
    "scores": scored,
    "a static cache": lambda model: greedy(model, prompt_of(2, 7), cache_implementation="static"),
    "a quantized cache": lambda model: greedy(
        model, prompt_of(2, 7), cache_implementation="quantized", cache_config={"backend": "fp8"}
    ),
    "no cache": lambda model: greedy(model, prompt_of(2, 7), use_cache=False),
    "one token of a prompt": lambda model: greedy(model, prompt_of(2, 1)),
}
PROGRAMS = 14  # all modes together: prompts and later tokens, padded or not, three kinds of caches, no cache


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor) and expected.is_floating_point():
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    model = model_of("llama")
    return model, thunder.compile(model, Uncompiled)


@pytest.mark.parametrize("name", MODES)
@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_a_mode_gives_eagers_tokens(name: str, pair: tuple[Any, Any]) -> None:
    model, compiled = pair
    expected = MODES[name](model)
    assert_same(MODES[name](compiled), expected)
    before = thunder.cache_misses(compiled)
    assert_same(MODES[name](compiled), expected)
    assert thunder.cache_misses(compiled) == before <= PROGRAMS, thunder.recompile_reasons(compiled)


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_tokens_that_an_assistant_guesses_are_checked_by_the_compiled_model(pair: tuple[Any, Any]) -> None:
    model, compiled = pair
    prompt = prompt_of(1, 7)
    expected = greedy(model, prompt, assistant_model=model)
    assert torch.equal(greedy(compiled, prompt, assistant_model=model), expected)


def test_a_compiled_model_has_all_that_generates() -> None:
    model = model_of("llama")
    compiled = thunder.compile(model, "hf-llama3")
    assert isinstance(compiled, transformers.GenerationMixin)
    for name in ("generation_config", "config", "device", "dtype", "can_generate", "main_input_name"):
        ours, theirs = getattr(compiled, name), getattr(model, name)
        assert ours == theirs or ours.__func__ is theirs.__func__, name


def test_twenty_prompts_of_all_lengths_and_batches_trace_nothing_and_keep_nothing() -> None:
    model = model_of("llama")
    compiled = thunder.compile(model, Uncompiled)
    kept, programs = [], []
    for count in range(20):
        prompt = prompt_of(1 + count * 3 % 4, 2 + count * 7 % 23)
        assert torch.equal(greedy(compiled, prompt, 5), greedy(model, prompt, 5))
        gc.collect()
        kept.append(sum(isinstance(one, torch.Tensor) for one in gc.get_objects()))
        programs.append(thunder.cache_misses(compiled))
    assert programs == [2] * 20, thunder.recompile_reasons(compiled)
    assert max(kept[2:]) <= kept[1], kept
