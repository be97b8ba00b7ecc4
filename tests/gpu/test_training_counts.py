"""A training step of 4 x 2,048 tokens of a Llama of 1B parameters on an absent Hopper GPU: launches, logits, memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.decode_counts import LAYERS
from tests.gpu.printed_counts import FEW, printed_counts
from tests.gpu.training_counts import BATCH, LENGTH
from thunder_core.foundation import plugins

pytestmark = pytest.mark.skipif(not plugins.is_installed("triton"), reason="needs Triton")
# What a driver launches for a layer, in the forward and in the backward.
FORWARD = {
    "rms_norm_forward_kernel": 2,
    "aten::mm": 7,
    "rotary_kernel": 1,
    "aten::_scaled_dot_product_cudnn_attention": 1,
    "gated_forward_kernel": 1,
}
BACKWARD = {
    "aten::mm": 14,
    "rms_norm_input_gradient_kernel": 2,
    "rms_norm_weight_gradient_kernel": 2,
    "gated_gradient_kernel": 1,
    "aten::_scaled_dot_product_cudnn_attention_backward": 1,
    "rotary_kernel": 1,
    "triton_poi_fused_0": 1,  # the sum of the gradients of queries, keys and values
    "aten::add": 1,  # the sum of the gradients of gate and up
}
LABELS = 8 * BATCH * LENGTH  # bytes
SAVED = 621_806_592  # bytes of a layer for the backward


@pytest.fixture(scope="module")
def counts() -> list[dict[str, Any]]:
    """The printed counts for few layers and for all."""
    return list(printed_counts("tests.gpu.training_counts").values())


@pytest.mark.parametrize(("index", "launched"), [(0, FORWARD), (1, BACKWARD)], ids=["forward", "backward"])
def test_launches_of_a_layer(index: int, launched: dict[str, int], counts: list[dict[str, Any]]) -> None:
    few, many = (found["launches"][index] for found in counts)
    by_layer = {name: (many[name] - few[name]) / (LAYERS - FEW) for name in many}
    assert {name: number for name, number in by_layer.items() if number} == launched


def test_launches_of_the_model(counts: list[dict[str, Any]]) -> None:
    forward, backward = (sum(launches.values()) for launches in counts[1]["launches"])
    assert (forward, backward) == (12 * LAYERS + 7, 23 * LAYERS + 9)


def test_the_loss_reads_the_logits_in_bfloat16(counts: list[dict[str, Any]]) -> None:
    for found in counts:
        forward, backward = found["launches"]
        assert (forward["cross_entropy_kernel"], backward["cross_entropy_gradient_kernel"]) == (1, 1)
        assert found["logits"] == ["torch.bfloat16"]


def test_no_graph_copies_what_the_forward_saves(counts: list[dict[str, Any]]) -> None:
    """The only copy is that of the shifted labels."""
    for found in counts:
        assert found["graphs"] == 0
        assert found["copied"] == [{"aten::clone": LABELS}, {}]


def test_memory_grows_by_what_a_layer_saves(counts: list[dict[str, Any]]) -> None:
    few, many = counts
    assert many["saved"] - few["saved"] == many["own memory"] - few["own memory"] == SAVED * (LAYERS - FEW)
    assert (many["outside"], many["own memory"]) == (2_997_096_960, 14_744_044_032)
