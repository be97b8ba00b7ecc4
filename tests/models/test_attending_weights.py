"""Random weights with which a model attends to some tokens more than to others."""

from __future__ import annotations

import pytest
import torch

from tests.families import inputs_for, sample


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "vit", "phi3", "t5"])
def test_a_random_model_attends_unevenly(family):
    """The largest attention weight of a token with many predecessors is several times the uniform weight."""
    loaded = sample(family)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = loaded.model.eval()(**inputs_for(loaded), output_attentions=True)
    attentions = outputs.get("attentions") or outputs["encoder_attentions"]
    last = attentions[0][:, :, -1]
    assert float((last.amax(-1) * last.shape[-1]).max()) > 2.0
