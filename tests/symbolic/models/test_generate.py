"""`generate` with transformers' default cache, which grows with each token, runs few programs for all tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import thunder_core as thunder

TOKENS = 64
SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}
WINDOW = {**SMALL, "sliding_window": 16}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)),
    "mistral, within a window": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**WINDOW)),
}
# The prompt, the first generated token, and all later tokens. A window that fills up needs one more program when it
# is full, and one when it is full except for one token.
MOST = {"mistral, within a window": 5}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.generation_config.eos_token_id = None
    return model


def options_for(tokens: torch.Tensor) -> dict[str, Any]:
    mask = torch.ones_like(tokens)
    return {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_generate_runs_three_programs_and_gives_the_tokens_of_eager(name: str) -> None:
    model = model_of(name)
    tokens = torch.randint(3, 64, (2, 7))
    compiled = thunder.jit(model)
    options = options_for(tokens)
    assert torch.equal(compiled.generate(tokens, **options), model.generate(tokens, **options))
    assert thunder.cache_misses(compiled) <= MOST.get(name, 3), thunder.recompile_reasons(compiled)
