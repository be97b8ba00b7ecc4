"""The modes of `generate`, each a function of a model and a size, and the comparison of results with eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from tests.generation.models import draft_of, greedy, prompts_of

Mode = Callable[[Any, int, int], Any]  # of a model, a batch and a length; some take one prompt for every batch


class Streamer(transformers.generation.BaseStreamer):  # type: ignore[misc]
    """A streamer that keeps the tokens that it receives."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.given.append(value.tolist())

    def end(self) -> None:
        self.given.append("end")


class StopsAt(transformers.StoppingCriteria):  # type: ignore[misc]
    """A criterion that ends a text at a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


class Forbids(transformers.LogitsProcessor):  # type: ignore[misc]
    """A processor that forbids every second token."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forbidden = scores.clone()
        forbidden[:, ::2] = -torch.inf
        return forbidden


def continue_prompts(model: Any, batch: int, length: int, **options: Any) -> Any:
    """Prompts, with images for a multimodal model, and their continuations."""
    prompt, inputs = prompts_of(model, batch, length)
    return greedy(model, prompt, **inputs, **options)


def sampled(model: Any, batch: int, length: int, **options: Any) -> Any:
    """Tokens that are sampled with a seed."""
    torch.manual_seed(3)
    return continue_prompts(model, batch, length, do_sample=True, temperature=0.8, top_k=20, top_p=0.9, **options)


def continue_padded_prompts(model: Any, batch: int, length: int, **options: Any) -> Any:
    """The continuations of prompts of several lengths, padded on the left."""
    prompt, inputs = prompts_of(model, batch, length + 3)
    mask = torch.ones_like(prompt)
    for row, count in zip(range(batch), (3, 0, 1), strict=False):
        prompt[row] = torch.cat([torch.zeros(count, dtype=prompt.dtype), prompt[row, : prompt.shape[1] - count]])
        mask[row, :count] = 0
    return greedy(model, prompt, attention_mask=mask, **inputs, **options)


def streamed(model: Any, batch: int, length: int) -> Any:
    """The tokens, and the tokens that a streamer received."""
    streamer = Streamer()
    return continue_prompts(model, 1, length, streamer=streamer), streamer.given


def scored(model: Any, batch: int, length: int) -> Any:
    """The tokens, with their scores and logits."""
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    found = continue_prompts(model, batch, length, **options)
    return found.sequences, found.scores, found.logits


def processed(model: Any, batch: int, length: int) -> Any:
    """Tokens chosen by processors of the library and of the caller."""
    options = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2}
    return continue_prompts(model, batch, length, logits_processor=[Forbids()], **options)


def with_options(**options: Any) -> Mode:
    """The continuations of prompts with options of `generate`."""
    return lambda model, batch, length: continue_prompts(model, batch, length, **options)


def for_one(**options: Any) -> Mode:
    """The continuation of a single prompt with options of `generate`."""
    return lambda model, batch, length: continue_prompts(model, 1, length, **options)


MODES: dict[str, Mode] = {
    "greedy": continue_prompts,
    "sampling": sampled,
    "several sequences per prompt": lambda model, batch, length: sampled(model, batch, length, num_return_sequences=2),
    "beam search": with_options(num_beams=3),
    "beam sampling": lambda model, batch, length: sampled(model, batch, length, num_beams=2),
    "left padding": continue_padded_prompts,
    "left padding with beam search": lambda model, batch, length: continue_padded_prompts(
        model, batch, length, num_beams=2
    ),
    "streamer": streamed,
    "stopping criteria": lambda model, batch, length: continue_prompts(
        model, batch, length, stopping_criteria=[StopsAt(length + 4)]
    ),
    "logits processors": processed,
    "returned scores": scored,
    "static cache": with_options(cache_implementation="static"),
    "quantized cache": with_options(cache_implementation="quantized", cache_config={"backend": "fp8"}),
    "offloaded cache": with_options(cache_implementation="offloaded"),
    "without a cache": with_options(use_cache=False),
    "one-token prompt": lambda model, batch, length: continue_prompts(model, batch, 1),
    "chunked prefill": with_options(prefill_chunk_size=3),
    "prompt lookup": for_one(prompt_lookup_num_tokens=2),
}
ASSISTED = "assisted generation"


def modes_with(model: Any) -> dict[str, Mode]:
    """All modes, and the mode in which another, uncompiled model drafts tokens."""
    return {**MODES, ASSISTED: for_one(assistant_model=draft_of(model))}


def assert_same(found: Any, expected: Any) -> None:
    """Check for the same tokens and texts, and for scores that are equal except for rounding."""
    if isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for actual, wanted in zip(found, expected, strict=True):
            assert_same(actual, wanted)
    elif isinstance(expected, torch.Tensor) and expected.is_floating_point():
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), "other tokens"
    else:
        assert found == expected, "another result"
