"""A model of images and text continues prompts with images as eager PyTorch does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import thunder_core as thunder
from tests.generation.models import DECODER, VOCABULARY, Uncompiled, greedy
from thunder_core.errors import DataDependent

IMAGE = 5  # the token in whose places an image stands
SIZE = 28  # pixels, of four patches
PATCHES = 4
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def llava() -> Any:
    """A small model with seeded weights that sees and continues texts."""
    torch.manual_seed(0)
    vision = transformers.CLIPVisionConfig(**VISION, image_size=SIZE, patch_size=SIZE // 2)
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=transformers.LlamaConfig(**DECODER),
        image_token_index=IMAGE,
        image_seq_length=PATCHES,
        pad_token_id=0,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.generation_config.eos_token_id = None
    return model


def question(batch: int, length: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """Prompts with an image behind their second token, and these images."""
    generator = torch.Generator().manual_seed(length)
    text = torch.randint(8, VOCABULARY, (batch, length), generator=generator)
    prompt = torch.cat([text[:, :2], torch.full((batch, PATCHES), IMAGE), text[:, 2:]], 1)
    return prompt, {"pixel_values": torch.randn(batch, 3, SIZE, SIZE, generator=generator)}


def test_prompts_with_images_are_continued_with_eagers_tokens() -> None:
    model = llava()
    compiled = thunder.jit(model, executors=("torch",))
    programs = []
    for batch, length in ((2, 5), (1, 4)):
        prompt, images = question(batch, length)
        assert torch.equal(greedy(compiled, prompt, 5, **images), greedy(model, prompt, 5, **images))
        programs.append(thunder.cache_misses(compiled))
    # A prompt and two for later tokens; then a prompt with another number of images, and a single row.
    assert programs[-1] <= 5, thunder.recompile_reasons(compiled)


def test_a_recipe_refuses_images_whose_tokens_the_program_counts() -> None:
    prompt, images = question(2, 5)
    with pytest.raises(DataDependent, match="get_placeholder_mask"):
        greedy(thunder.compile(llava(), Uncompiled), prompt, 5, **images)
