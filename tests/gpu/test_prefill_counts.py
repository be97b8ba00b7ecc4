"""A prompt of 2,048 tokens of a Llama of 1B parameters on an absent Hopper GPU: graphs, launches, copies and memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.decode_counts import LAYERS, SIZES
from tests.gpu.prefill_counts import PROMPT
from tests.gpu.printed_counts import FEW, printed_counts
from thunder_core.foundation import plugins

pytestmark = pytest.mark.skipif(not plugins.is_installed("triton"), reason="needs Triton")
# What a driver launches for a layer: the norms, the products for queries, keys, values, output, gate, up and down, the
# rotation, attention, and SwiGLU.
LAUNCHED = {
    "rms_norm_forward_kernel": 2,
    "aten::mm": 7,
    "rotary_kernel": 1,
    "aten::_scaled_dot_product_cudnn_attention": 1,
    "gated_forward_kernel": 1,
}
COPIES_OF_KEYS_AND_VALUES = {"triton_poi_fused_0": 2}  # into the layout of a dynamic cache
LOGITS = 2 * SIZES["vocab_size"]  # bytes, of one token
KEYS_AND_VALUES = 2 * 2 * PROMPT * SIZES["hidden_size"] // 4  # bytes of a layer, whose keys have 8 of 32 heads


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    """The printed counts."""
    return printed_counts("tests.gpu.prefill_counts")


@pytest.fixture(scope="module")
def counts(printed: dict[str, Any]) -> list[dict[str, Any]]:
    """The counts of a call without a cache for few layers and for all layers."""
    return [printed[str(FEW)], printed[str(LAYERS)]]


def test_a_prompt_is_one_graph_without_a_mask(printed: dict[str, Any]) -> None:
    for layers, found in ((FEW, printed[str(FEW)]), (LAYERS, printed[str(LAYERS)]), (FEW, printed["cache"])):
        assert (found["programs"], found["graphs"], found["outside of graphs"]) == (1, 1, 0)
        has_mask, is_causal, is_grouped = False, True, True
        assert found["attention"] == [[has_mask, is_causal, is_grouped]] * layers


def test_a_layer_is_12_launches(counts: list[dict[str, Any]]) -> None:
    few, many = (found["calls"][1]["captured"][0] for found in counts)
    by_layer = {name: (many[name] - few[name]) / (LAYERS - FEW) for name in many}
    assert {name: number for name, number in by_layer.items() if number} == LAUNCHED
    assert sum(many.values()) == 12 * LAYERS + 4  # two for the embedding and angles, the last norm, and logits


def test_a_replay_copies_tokens_in_and_the_logits_of_the_last_token_out(counts: list[dict[str, Any]]) -> None:
    for layers, found in zip((FEW, LAYERS), counts, strict=True):
        assert found["copied"] == ["input_ids"]
        assert found["read in place"] == 9 * layers + 4  # weights, and the frequencies of the rotation
        first, second, third = found["calls"]
        assert first["outside"] == second["captured"][0]
        for call in (second, third):
            assert (call["replayed"], call["outside"]) == (1, {})
            assert (call["copied in"], call["copied out"]) == (8 * PROMPT, LOGITS)
        assert third["captured"] == []


def test_memory_does_not_grow_with_the_layers(counts: list[dict[str, Any]]) -> None:
    """The peak is in a gated layer: both halves and their product, the residual, and the angles of the rotation."""
    assert {tuple(found["peak"]) for found in counts} == {(109_576_192,)}
    assert {found["memory"]["graphs"] for found in counts} == {8 * PROMPT + LOGITS}


def test_a_dynamic_cache_takes_two_copies_of_a_layer(printed: dict[str, Any]) -> None:
    """Keys and values are transposed views or results of rotations, and the cache is contiguous, as in eager."""
    without, cached = printed[str(FEW)]["calls"][2], printed["cache"]["calls"][2]
    assert cached["copied out"] - without["copied out"] == FEW * KEYS_AND_VALUES
    launched, more = (found["calls"][1]["captured"][0] for found in (printed[str(FEW)], printed["cache"]))
    differences = {name: (more[name] - launched[name]) / FEW for name in more if more[name] != launched[name]}
    assert differences == COPIES_OF_KEYS_AND_VALUES


def test_logits_of_all_tokens_are_not_copied_out_of_a_graph(printed: dict[str, Any]) -> None:
    """Copying 525 MB of logits would take longer than the launches."""
    found = printed["all logits"]
    assert found["graphs"] == 0
    assert sum(found["calls"][2]["outside"].values()) == (12 + 2) * FEW + 4


def test_a_mask_and_its_term_take_two_launches_for_all_layers(printed: dict[str, Any]) -> None:
    found = printed["mask"]
    assert found["attention"] == [[True, False, True]] * FEW
    (graph,) = found["calls"][1]["captured"]
    assert sum(graph.values()) == 12 * FEW + 4 + 2
    assert found["calls"][2]["copied in"] == (8 + 8) * PROMPT
