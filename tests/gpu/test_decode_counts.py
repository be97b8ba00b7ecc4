"""A token of a Llama of 1B parameters on an absent Hopper GPU: programs, graphs, launches, copied bytes and memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.decode_counts import LAYERS, SCHEMES, SIZES
from tests.gpu.printed_counts import FEW, printed_counts
from thunder_core.foundation import plugins

pytestmark = pytest.mark.skipif(not plugins.is_installed("triton"), reason="needs Triton")
# Of a layer: queries, keys and values with the norm before them, the rotation with the writes into the cache,
# attention, and SwiGLU with its products and the norm before them; and two other products.
LAYER = {"inductor": 0, "triton": 4, "torch": 2}
# What a driver launches for a layer.
LAUNCHED = {
    "normalized_linear_kernel": 1,
    "rotary_into_cache_kernel": 1,
    "decode_attention_kernel": 1,
    "aten::bmm": 1,
    "normalized_gated_kernel": 1,
    "aten::mm": 1,
}
WEIGHTS = 2_996_965_440  # bytes in bfloat16, with separate tables for the embedding and the logits
POSITIONS = 16 + 64 - 1  # of the cache: the last token is not written


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    """The printed counts."""
    return printed_counts("tests.gpu.decode_counts")


@pytest.fixture(scope="module")
def counts(printed: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The counts of unpadded text by the number of layers."""
    return {int(layers): found for layers, found in printed.items() if layers.isdecimal()}


def test_two_programs_generate_64_tokens(counts: dict[int, dict[str, Any]]) -> None:
    assert [found["programs"] for found in counts.values()] == [2, 2]


def test_a_token_is_one_graph(counts: dict[int, dict[str, Any]]) -> None:
    for found in counts.values():
        assert (found["graphs"], found["outside of graphs"]) == (1, 0)


def test_no_parameter_and_no_cache_is_copied_before_a_replay(counts: dict[int, dict[str, Any]]) -> None:
    """The graph reads 9 weights, a cache and its length of each layer in place, and 4 tensors of the whole model."""
    for layers, found in counts.items():
        assert set(found["copied"]) == {f"kwargs[{name!r}]" for name in ("input_ids", "position_ids", "attention_mask")}
        assert sum(found["copied"].values()) < 128
        assert found["parameters"] == 12 * layers + 4


def test_a_driver_launches_the_kernels_of_the_trace(counts: dict[int, dict[str, Any]]) -> None:
    """A driver launches what the counts of the trace show."""
    few, many = (counts[layers]["calls"][1]["captured"][0] for layers in (FEW, LAYERS))
    by_layer = {name: (many[name] - few[name]) / (LAYERS - FEW) for name in many}
    assert {name: number for name, number in by_layer.items() if number} == LAUNCHED
    assert sum(many.values()) == sum(LAUNCHED.values()) * LAYERS + 5


def test_a_token_is_one_replay_that_copies_no_parameter_and_no_cache(counts: dict[int, dict[str, Any]]) -> None:
    """Of 63 tokens after the prompt, the first runs without a graph, and the second captures the graph."""
    for found in counts.values():
        first, second, *later = found["calls"]
        assert len(later) == 61
        assert first["outside"] == second["captured"][0]
        assert len(second["captured"]) == 1
        for call in (second, *later):
            assert (call["replayed"], call["outside"]) == (1, {})
            assert (call["copied in"], call["copied out"]) == (95, 2 * SIZES["vocab_size"])
        assert not any(call["captured"] for call in later)


def test_memory_is_the_weights_the_cache_and_the_inputs_and_results_of_the_graph(
    counts: dict[int, dict[str, Any]],
) -> None:
    memory = counts[LAYERS]["memory"]
    width = SIZES["hidden_size"] // SIZES["num_attention_heads"] * SIZES["num_key_value_heads"]
    cache = LAYERS * (2 * POSITIONS * width * 2 + 8)
    assert memory == {"weights": WEIGHTS, "cache": cache, "arguments": 95, "graphs": 95 + 2 * SIZES["vocab_size"]}


def test_the_third_of_three_prompts_is_a_replay(printed: dict[str, Any]) -> None:
    """A prompt copies in its tokens, their positions, and the count of each layer; it copies out the new cache."""
    first, second, third = printed["prompts"]
    assert first["outside"] == {**second["captured"][0], "aten::_foreach_add_": 1}
    assert (third["captured"], third["replayed"], third["outside"]) == ([], 1, {"aten::_foreach_add_": 1})
    width = SIZES["hidden_size"] // SIZES["num_attention_heads"] * SIZES["num_key_value_heads"]
    cache = FEW * 2 * (16 + 4 - 1) * width * 2
    assert third["copied in"] == 8 * (16 + 16 + FEW)
    assert third["copied out"] == 2 * SIZES["vocab_size"] + cache


def test_a_layer_is_6_launches_and_the_first_layer_needs_no_more(counts: dict[int, dict[str, Any]]) -> None:
    few, many = counts[FEW]["launches"], counts[LAYERS]["launches"]
    assert {name: (many[name] - few[name]) / (LAYERS - FEW) for name in many} == LAYER
    assert sum(many.values()) == 6 * LAYERS + 5  # two for the embedding and angles, the last norm, logits, and counts


def test_each_layer_of_a_token_attends_to_the_filled_part_of_its_cache(counts: dict[int, dict[str, Any]]) -> None:
    for layers, found in counts.items():
        assert found["names"]["attend_by_mask"] == layers
        assert not {"attention", "scaled_dot_product_attention"} & found["names"].keys()


def test_a_prompt_with_a_new_cache_is_one_graph(counts: dict[int, dict[str, Any]], printed: dict[str, Any]) -> None:
    """The counts of tokens, which transformers makes on the CPU, are copied before it and incremented after it."""
    for layers, prompt in ((FEW, printed["padded"]), *((layers, found["prompt"]) for layers, found in counts.items())):
        assert prompt["graphs"] == 1
        assert prompt["outside of graphs"] == ["to"] * layers + ["_foreach_add_"]


def test_keys_and_values_are_not_repeated_for_a_prompt_with_padding(printed: dict[str, Any]) -> None:
    calls = printed["padded"]["calls"]
    assert calls["grouped_attention"] == FEW
    assert not {"expand", "attention", "repeat_interleave"} & calls.keys()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_of_4_and_8_bits_are_widened_in_the_registers_of_each_product(
    scheme: str, printed: dict[str, Any]
) -> None:
    """The LM head has 8 bits in both schemes."""
    calls = printed[scheme]
    assert calls.get("int8_weight_product", 0) + calls.get("int4_weight_product", 0) == 7 + 1
    assert not {"int8_product", "int4_product", "linear", "mul"} & calls.keys()


def test_a_token_takes_the_memory_of_its_logits(counts: dict[int, dict[str, Any]]) -> None:
    for found in counts.values():
        assert found["own memory"] == 2 * SIZES["vocab_size"]
