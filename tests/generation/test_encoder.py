"""The encoder of an encoder-decoder model, which `generate` calls directly, is compiled separately."""

from __future__ import annotations

import copy

import pytest
import torch

import thunder_core as thunder
from tests.generation.models import Uncompiled, greedy, model_of, prompt_of
from tests.generation.modes import continue_padded_prompts


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_an_encoder_with_named_sizes_is_one_program_for_all_prompts(family: str) -> None:
    plain = model_of(family)
    model = copy.deepcopy(plain)
    encoder = thunder.compile(model.get_encoder(), Uncompiled, symbolic={"batch": None, "seq": (2, None)})
    model.set_encoder(encoder)
    compiled = thunder.compile(model, Uncompiled)
    shapes = ((2, 7), (1, 5))
    for batch, length in shapes:
        prompt = prompt_of(batch, length)
        assert torch.equal(greedy(compiled, prompt, 2), greedy(plain, prompt, 2))
        assert torch.equal(
            continue_padded_prompts(compiled, batch, length, tokens=2),
            continue_padded_prompts(plain, batch, length, tokens=2),
        )
    assert thunder.cache_misses(encoder) == 1, thunder.recompile_reasons(encoder)
    assert thunder.cache_hits(encoder) == 2 * len(shapes) - 1
    assert thunder.cache_misses(compiled) == 2, thunder.recompile_reasons(compiled)
