"""`generate` is measured token by token with the contenders in turn, and differing tokens are reported."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.generation.models import Uncompiled, model_of, prompt_of
from thunder_core.foundation.errors import CannotGenerate
from thunder_core.workflow.benchmark import BenchmarkSuite
from thunder_core.workflow.benchmark.generation import GeneratedTokens, GenerationBenchmark
from thunder_core.workflow.benchmark.measurement import MeasurementSettings
from thunder_core.workflow.pipeline.generation.generation_speed import Contender, generated_tokens, measure_generation

CPU = torch.device("cpu")


class Slow:
    """A model that yields tokens like `generate`: the first after some seconds, later tokens at another interval."""

    def __init__(self, first: float, others: float, change: int | None = None, fewer: int = 0) -> None:
        self.first, self.others, self.change, self.fewer = first, others, change, fewer
        self.asked: list[dict[str, Any]] = []

    def generate(self, input_ids: torch.Tensor, *, max_new_tokens: int, streamer: Any, **options: Any) -> torch.Tensor:
        self.asked.append(options)
        streamer.put(input_ids)
        tokens = torch.zeros(len(input_ids), max_new_tokens - self.fewer, dtype=torch.int64)
        for index in range(max_new_tokens - self.fewer):
            time.sleep(self.others if index else self.first)
            streamer.put(tokens[:, index])
        if self.change is not None:
            tokens[-1, self.change] = 1
        return torch.cat((input_ids, tokens), dim=1)


def measure_contenders(
    contenders: dict[str, Any], *, batch: int = 2, new_tokens: int = 4, **options: Any
) -> GenerationBenchmark:
    prompt = prompt_of(batch, 7)
    given = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
    named = {name: Contender(model) for name, model in contenders.items()}
    return measure_generation(
        named,
        given,
        new_tokens,
        MeasurementSettings(**{"runs": 2, "warmup": 1, "device": CPU, "memory": False, **options}),
    )


def test_the_first_token_and_the_others_are_timed_separately() -> None:
    slow, quick = Slow(0.03, 0.002), Slow(0.01, 0.004)
    found = measure_contenders({"slow": slow, "quick": quick}, configuration={"model": "m"})
    assert len(slow.asked) == len(quick.asked) == 1 + 1 + 2
    assert slow.asked[0] | {"do_sample": False, "eos_token_id": None} == slow.asked[0]
    whole, first, following = found, *found.parts
    assert [report.call for report in (whole, first, following)] == ["generation", "first token", "next token"]
    assert whole.configuration == {"model": "m", "batch": "2", "size": "7 + 4 tokens", "call": "generation"}
    assert 0.03 <= first.first.median < whole.first.median
    assert 0.002 <= following.first.median < 0.004 <= following.candidates[1].median
    assert first.candidates[1].speedup.value > 1 > following.candidates[1].speedup.value
    assert found.tokens_per_second(found.first) == pytest.approx(2 / following.first.median)
    assert [len(text.seconds) for text in found.texts] == [4, 4]
    assert found.texts[0].seconds[0] == pytest.approx(first.first.median)
    suite = BenchmarkSuite(thunder="0", reports=(found, first))
    again = BenchmarkSuite.model_validate_json(suite.model_dump_json())
    assert again == suite
    assert [type(report).__name__ for report in again.reports] == ["GenerationBenchmark", "BenchmarkReport"]
    assert suite.measured == (found, first, following, first)


def test_a_single_new_token_has_no_time_for_later_tokens() -> None:
    found = measure_contenders({"eager": Slow(0.001, 0)}, new_tokens=1)
    assert (found.parts, found.next_token, found.tokens_per_second(found.first)) == ((found.first_token,), None, None)


def test_tokens_that_differ_are_reported() -> None:
    found = measure_contenders({"eager": Slow(0, 0), "same": Slow(0, 0), "other": Slow(0, 0, change=2)})
    assert [found.difference(candidate) for candidate in found.candidates[:2]] == ["", ""]
    assert found.difference(found.candidates[2]) == "12.5% of its tokens differ from eager's, starting at token 3"
    expected = torch.tensor([[1, 2, 3], [4, 5, 6]])
    told = generated_tokens("one", torch.tensor([[1, 2, 9], [4, 0, 6]]), expected, [0.1] * 3)
    assert told == GeneratedTokens(name="one", seconds=(0.1,) * 3, equal=4 / 6, differs_at=2)


def test_fewer_tokens_than_requested_are_refused() -> None:
    with pytest.raises(CannotGenerate, match=r"Slow.generate streamed 3 tokens instead of 4"):
        measure_contenders({"eager": Slow(0, 0, fewer=1)})


def test_models_and_compiled_models_generate_to_the_last_token() -> None:
    """Sampling and tokens that end a text are settings of the model that a measurement ignores."""
    model = model_of("llama")
    model.generation_config.update(do_sample=True, temperature=0.7, eos_token_id=list(range(3, 64)))
    found = measure_contenders({"eager": model, "thunder": thunder.compile(model, Uncompiled)}, memory=True)
    assert found.difference(found.candidates[1]) == ""
    assert all(candidate.peak_bytes for candidate in found.candidates)
    assert model.generation_config.do_sample


def test_a_decoder_begins_with_a_token_of_its_own() -> None:
    found = measure_contenders({"eager": model_of("t5")}, new_tokens=3)
    assert len(found.text_of(found.first).seconds) == 3
