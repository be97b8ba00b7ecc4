"""Every mode of `generate` gives eager PyTorch's tokens on a compiled model, which is otherwise unmodified."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import thunder_core as thunder
from tests.generation.matrix import differing
from tests.generation.models import Uncompiled, draft_of, greedy, model_of, prompt_of
from tests.generation.modes import MODES, assert_same

PROGRAMS = 14  # all modes together: prompts and later tokens, padded or not, three types of caches, no cache


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    model = model_of("llama")
    return model, thunder.compile(model, Uncompiled)


# Modes that the families' tests run, that need a GPU, or that need as many programs as steps have sizes.
ELSEWHERE = ("greedy", "offloaded cache", "prompt lookup", "chunked prefill")


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", [name for name in MODES if name not in ELSEWHERE])
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_a_mode_gives_eagers_tokens(name: str, pair: tuple[Any, Any]) -> None:
    model, compiled = pair
    expected = MODES[name](model, 2, 7)
    assert_same(MODES[name](compiled, 2, 7), expected)
    before = thunder.cache_misses(compiled)
    assert_same(MODES[name](compiled, 2, 7), expected)
    assert thunder.cache_misses(compiled) == before <= PROGRAMS, thunder.recompile_reasons(compiled)


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_tokens_that_an_assistant_guesses_are_checked_by_the_compiled_model(pair: tuple[Any, Any]) -> None:
    model, compiled = pair
    draft, programs = draft_of(model), []
    for length in (7, 9, 4):
        prompt = prompt_of(1, length)
        expected = greedy(model, prompt, assistant_model=draft)
        assert torch.equal(greedy(compiled, prompt, assistant_model=draft), expected)
        programs.append(thunder.cache_misses(compiled))
    assert programs[-1] == programs[-2], thunder.recompile_reasons(compiled)


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_a_compiled_model_guesses_tokens_for_another() -> None:
    model = model_of("llama")
    draft = draft_of(model)
    compiled = thunder.compile(draft, Uncompiled)
    for length in (7, 4):
        prompt = prompt_of(1, length)
        expected = greedy(model, prompt, assistant_model=draft)
        assert torch.equal(greedy(model, prompt, assistant_model=compiled), expected)


# Some families and modes that no other test runs. `python -m tests.generation.matrix` runs all of them.
CELLS = {
    "qwen3_moe": ("left padding", "beam search"),
    "mamba": ("sampling", "left padding"),
    "t5": ("beam search", "assisted generation"),
    "mistral": ("left padding", "beam search"),
    "gpt2": ("assisted generation", "logits processors"),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize(("family", "mode"), [(family, mode) for family, modes in CELLS.items() for mode in modes])
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_families_of_other_builds_generate_in_other_modes(family: str, mode: str) -> None:
    assert not differing(family, [mode])


def test_a_compiled_model_has_the_attributes_for_generation() -> None:
    model = model_of("llama")
    compiled = thunder.compile(model, "hf-llama3")
    assert isinstance(compiled, transformers.GenerationMixin)
    for name in ("generation_config", "config", "device", "dtype", "can_generate", "main_input_name"):
        ours, theirs = getattr(compiled, name), getattr(model, name)
        assert ours == theirs or ours.__func__ is theirs.__func__, name
