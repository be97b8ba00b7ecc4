"""Each family of models generates eager PyTorch's tokens with few programs for all lengths and batches."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from tests.generation.models import MODELS, Uncompiled, greedy, model_of, prompt_of
from tests.generation.modes import continue_padded_prompts
from thunder_core.compilation.compiler import specializations_of

SHAPES = ((2, 7), (1, 4), (3, 9), (1, 5))
USUAL = 2  # programs: one for the prompt, and one for each later token
WITH_WINDOW = 4  # for tokens that fill a window and for later tokens, which need masks
FIRST = {"mistral": WITH_WINDOW, "gemma2": 3, "phi3": WITH_WINDOW}
IN_THE_MATRIX = ("mamba2", "jamba", "llava")  # families that only `python -m tests.generation.matrix` runs


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_prompts_longer_than_the_window_need_two_programs_for_all_lengths(name: str) -> None:
    model = model_of(name)
    compiled = thunder.compile(model, Uncompiled)
    for batch, length in ((2, 15), (2, 17), (1, 20)):  # the kept part of the prompt is a slice, with different strides
        prompt = prompt_of(batch, length)
        assert torch.equal(greedy(compiled, prompt, 4), greedy(model, prompt, 4))
    assert thunder.cache_misses(compiled) == 2, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_a_static_cache_with_a_sliding_window_needs_three_programs_for_every_batch(name: str) -> None:
    model = model_of(name)
    compiled = thunder.compile(model, Uncompiled)
    for batch, length in SHAPES:  # the texts end beyond the window
        prompt = prompt_of(batch, length)
        expected = greedy(model, prompt, cache_implementation="static")
        assert torch.equal(greedy(compiled, prompt, cache_implementation="static"), expected)
    assert thunder.cache_misses(compiled) == 3, thunder.recompile_reasons(compiled)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in IN_THE_MATRIX])
def test_a_family_generates_eagers_tokens_by_few_programs(name: str) -> None:
    model = model_of(name)
    compiled = thunder.compile(model, Uncompiled)
    programs = []
    for batch, length in SHAPES:
        prompt = prompt_of(batch, length)
        assert torch.equal(greedy(compiled, prompt), greedy(model, prompt))
        programs.append(thunder.cache_misses(compiled))
    most = FIRST.get(name, USUAL)
    assert programs[0] <= most, thunder.recompile_reasons(compiled)
    assert programs[-1] <= programs[0], thunder.recompile_reasons(compiled)
    assert not any(program.constant_because for program in specializations_of(compiled).programs)


@pytest.mark.parametrize("batches", [(1, 8, 3), (8, 1, 2)])
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_prompts_of_one_token_add_a_program_and_padding_adds_two_for_every_batch(batches: tuple[int, ...]) -> None:
    model = model_of("llama")
    compiled = thunder.compile(model, Uncompiled)
    programs = []
    for lengths in ((7, 4), (1,)):
        for batch, length in ((batch, length) for batch in batches for length in lengths):
            prompt = prompt_of(batch, length)
            assert torch.equal(greedy(compiled, prompt, 3), greedy(model, prompt, 3))
        programs.append(thunder.cache_misses(compiled))
    for batch in batches:
        expected = continue_padded_prompts(model, batch, 6, tokens=3)
        assert torch.equal(continue_padded_prompts(compiled, batch, 6, tokens=3), expected)
    programs.append(thunder.cache_misses(compiled))
    assert programs == [USUAL, USUAL + 1, USUAL + 3], thunder.recompile_reasons(compiled)
