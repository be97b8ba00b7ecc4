"""A model of images and text continues prompts with images like eager PyTorch."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from tests.generation.models import Uncompiled, greedy, model_of, question_of


def test_prompts_with_images_are_continued_with_eagers_tokens() -> None:
    model = model_of("llava")
    compiled = thunder.compile(model, Uncompiled)
    programs = []
    for batch, length in ((2, 5), (2, 9)):
        prompt, images = question_of(batch, length)
        assert torch.equal(greedy(compiled, prompt, 5, **images), greedy(model, prompt, 5, **images))
        programs.append(thunder.cache_misses(compiled))
    assert programs == [2, 2], thunder.recompile_reasons(compiled)


def test_images_that_do_not_fit_the_prompt_are_eagers_error() -> None:
    model = model_of("llava")
    compiled = thunder.compile(model, Uncompiled)
    prompt, images = question_of(2, 5)
    assert torch.equal(greedy(compiled, prompt, 2, **images), greedy(model, prompt, 2, **images))
    short = prompt[:, :4]
    with pytest.raises(ValueError, match="Image features and image tokens do not match") as wanted:
        greedy(model, short, 2, **images)
    with pytest.raises(ValueError, match="Image features and image tokens do not match") as found:
        greedy(compiled, short, 2, **images)
    assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]
