"""The modes of `generate`, each a function of a model, and how their results are compared with eager PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from tests.generation.models import greedy, prompt_of

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
    """Tokens that are drawn with a seed."""
    torch.manual_seed(3)
    return greedy(model, prompt_of(2, 7), do_sample=True, temperature=0.8, top_k=20, top_p=0.9, **options)


def padded(model: Any, **options: Any) -> Any:
    """What follows prompts of several lengths, which are padded at their left."""
    prompt = prompt_of(3, 7)
    mask = torch.ones_like(prompt)
    for row, count in enumerate((3, 0, 1)):
        prompt[row, :count] = mask[row, :count] = 0
    return greedy(model, prompt, attention_mask=mask, **options)


def streamed(model: Any) -> Any:
    """The tokens, and what a streamer was given of them."""
    streamer = Streamer()
    return greedy(model, prompt_of(1, 7), streamer=streamer), streamer.given


def scored(model: Any) -> Any:
    """The tokens, and the scores and logits that they were chosen by."""
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


def modes_with(assistant: Any) -> dict[str, Mode]:
    """All modes, and that in which a model guesses tokens ahead."""
    return {**MODES, "assisted": lambda model: greedy(model, prompt_of(1, 7), assistant_model=assistant)}


def assert_same(found: Any, expected: Any) -> None:
    """The same tokens and texts, and scores equal but for rounding."""
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
