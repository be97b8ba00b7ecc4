"""Small models with seeded weights that generate, their prompts, and a recipe for them that compiles no kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers

from thunder_recipes.hf_transformers import HFTransformers

WINDOW = 12  # tokens, for models with sliding-window attention
VOCABULARY = 64
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {
    **TOKENS,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ENCODER_DECODER = {
    **TOKENS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 128,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {
    **{name: TOKENS[name] for name in ("vocab_size", "pad_token_id")},
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
}
IMAGE = 5  # the placeholder token of an image
SIZE = 28  # pixels, in four patches
PATCHES = 4
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
JAMBA = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_d_state": 4,
    "mamba_dt_rank": 4,
}
Maker = Callable[[], Any]
MODELS: dict[str, Maker] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**DECODER, sliding_window=WINDOW)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**DECODER)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER, head_dim=8)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**DECODER, **GEMMA)),
    "phi3": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**DECODER, original_max_position_embeddings=128, sliding_window=WINDOW)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**DECODER, **EXPERTS, head_dim=8)
    ),
    "mamba": lambda: transformers.MambaForCausalLM(
        transformers.MambaConfig(**TOKENS, hidden_size=32, state_size=4, num_hidden_layers=2)
    ),
    "mamba2": lambda: transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(
            **TOKENS,
            hidden_size=32,
            state_size=4,
            num_hidden_layers=2,
            head_dim=8,
            num_heads=8,
            n_groups=1,
            chunk_size=8,
        )
    ),
    "jamba": lambda: transformers.JambaForCausalLM(transformers.JambaConfig(**DECODER, **JAMBA)),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
    "bart": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**ENCODER_DECODER)),
    "llava": lambda: transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**VISION, image_size=SIZE, patch_size=SIZE // 2),
            text_config=transformers.LlamaConfig(**DECODER),
            image_token_index=IMAGE,
            image_seq_length=PATCHES,
            pad_token_id=0,
        )
    ),
}


class Uncompiled(HFTransformers):
    """Models of the transformers library with the executor torch, which compiles no kernels."""

    executors = ("torch",)


def model_of(name: str) -> Any:
    """A model whose weights are large enough for its tokens to differ.

    It generates exactly as many tokens as requested.
    """
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.generation_config.eos_token_id = None
    return model


def draft_of(model: Any) -> Any:
    """A draft model that predicts many of the model's tokens, but not all."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(7)
    for parameter in draft.parameters():
        parameter.data += 0.03 * torch.randn(parameter.shape, generator=generator)
    return draft


def prompt_of(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    """Seeded tokens without special tokens."""
    return torch.randint(8, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def question_of(batch: int, length: int, seed: int = 1) -> tuple[torch.Tensor, dict[str, Any]]:
    """Prompts with an image after their first token, and the images."""
    text = prompt_of(batch, length, seed)
    prompt = torch.cat([text[:, :1], torch.full((batch, PATCHES), IMAGE), text[:, 1:]], 1)
    generator = torch.Generator().manual_seed(seed)
    return prompt, {"pixel_values": torch.randn(batch, 3, SIZE, SIZE, generator=generator)}


def prompts_of(model: Any, batch: int, length: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """The prompts of a model and its other inputs, such as images."""
    sees = hasattr(model.config, "vision_config")
    return question_of(batch, length) if sees else (prompt_of(batch, length), {})


def greedy(model: Any, prompt: torch.Tensor, tokens: int = 12, **options: Any) -> Any:
    """The prompt continued by greedy decoding. Options replace the defaults."""
    usual = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0}
    return model.generate(prompt, **{**usual, "max_new_tokens": tokens, **options})
