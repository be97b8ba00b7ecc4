"""Artifacts of models with quantized checkpoints: the packed weights are restored in their layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

import thunder_core as thunder
from tests.models import quantized_checkpoints as checkpoints
from thunder_core.foundation.errors import CannotReplay
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.manifest import WEIGHTS
from thunder_core.workflow.models.loading.empty_model import build_empty_model, empty_model_facts, is_rebuildable

# The module of transformers imports Inductor, whose own parts emit warnings.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

IDS = torch.arange(20).reshape(1, 20)
LLAMA = "transformers.models.llama.modeling_llama:LlamaForCausalLM"


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    """A Llama with weights of -1, 0 and 1, whose layers transformers builds without another package."""
    folder = checkpoints.bitnet(tmp_path / "model")
    config = folder / "config.json"
    built = build_empty_model(
        LLAMA,
        config=config.read_text(encoding="utf-8"),
        file=config,
        generation="",
        dtype="bfloat16",
        attention="sdpa",
        training=False,
    )
    built.load_state_dict(load_file(folder / "model.safetensors"), assign=True)
    return built


def test_the_layers_of_packed_weights_are_made_without_float_weights(model: PreTrainedModel) -> None:
    layer = model.get_submodule("model.layers.0.mlp.up_proj")
    assert type(layer).__name__ == "BitLinear"
    assert layer.weight.dtype == torch.uint8
    assert is_rebuildable(model)
    assert empty_model_facts(model)["path"] == LLAMA


def test_an_artifact_that_is_loaded_alone_has_the_packed_weights(model: PreTrainedModel, tmp_path: Path) -> None:
    compiled = thunder.compile(model, "default")
    with torch.no_grad():
        expected = compiled(input_ids=IDS).logits
        torch.testing.assert_close(expected, model(input_ids=IDS).logits, atol=0.03, rtol=0.03)
        kept = thunder.save(compiled, tmp_path / "kept", include_weights=True)
        loaded = thunder.load(kept)
        torch.testing.assert_close(loaded(input_ids=IDS).logits, expected, atol=0, rtol=0)
        torch.testing.assert_close(  # new inputs are traced with the built model
            loaded(input_ids=IDS[:, :7]).logits, model(input_ids=IDS[:, :7]).logits, atol=0.03, rtol=0.03
        )
    assert type(loaded.model.layers[0].mlp.up_proj).__name__ == "BitLinear"
    facts = open_artifact(kept).manifest.weights["model.layers.0.mlp.up_proj.weight"]
    assert (facts.dtype, facts.shape) == ("uint8", (64, 128))
    assert (kept / WEIGHTS).stat().st_size < 0.6 * sum(2 * p.numel() for p in checkpoints.float_parameters())


def test_weights_that_are_more_than_their_numbers_are_refused_by_name(tmp_path: Path) -> None:
    class Packed(torch.nn.Parameter):
        """A weight whose class is not a plain tensor."""

    layer = torch.nn.Linear(4, 4, bias=False)
    layer.weight = torch.Tensor._make_subclass(Packed, layer.weight.data)  # type: ignore[assignment]
    compiled = thunder.jit(layer)
    with torch.no_grad():
        compiled(torch.ones(2, 4))
    with pytest.raises(
        CannotReplay, match="the weight weight is a tensor of class Packed with more data than its elements"
    ):
        thunder.save(compiled, tmp_path / "kept", include_weights=True)
