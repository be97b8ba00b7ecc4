"""Traces of models that are compiled for the inspection."""

from __future__ import annotations

import pytest
import torch

from tests.generation.models import Uncompiled
from thunder_core.foundation.errors import CannotGenerate
from thunder_core.foundation.transformers_versions import CACHE_NAMES
from thunder_core.workflow.inspect.in_process import literals_of, traced_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import Request


def request_of(sample: str, new_tokens: int) -> Request:
    model = ModelRequest(sample=SAMPLES[sample], task="generate")
    return Request(recipe=Uncompiled, model=model, prompt_length=5, new_tokens=new_tokens)


@pytest.mark.parametrize(("new_tokens", "has_cache"), [(1, False), (3, True)])
def test_of_generation_the_program_of_the_last_token_is_shown(new_tokens: int, has_cache: bool) -> None:
    stage = traced_model(request_of("llama", new_tokens)).stage("computation")
    origins = [value.origin for value in stage.read().inputs]
    assert "kwargs['input_ids']" in origins
    caches = {f"kwargs['{name}'].layers[0].keys" for name in CACHE_NAMES}
    assert bool(caches & set(origins)) is has_cache


def test_a_model_that_generates_nothing_is_refused() -> None:
    with pytest.raises(CannotGenerate, match="BertForMaskedLM generates no text"):
        traced_model(request_of("bert", 3))


def test_literals_of_tensors_include_nan_and_infinities() -> None:
    mask = torch.tensor([[0.0, -torch.inf], [torch.nan, torch.inf]])
    complex_tensor = torch.tensor([complex(torch.inf, 1.0), 2j])
    literals = literals_of({"mask": mask, "complex": complex_tensor, "scalar": torch.tensor(-torch.inf)})
    assert eval(literals["scalar"]) == -torch.inf
    torch.testing.assert_close(eval(literals["mask"]), mask, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(eval(literals["complex"]), complex_tensor)
