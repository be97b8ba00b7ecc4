"""Named dimensions: `batch`, `seq`, `cache` and others, with the sizes of transformers' inputs that each name means."""

from __future__ import annotations

from collections.abc import Mapping

from thunder_core.foundation.transformers_versions import CACHE, CACHE_NAMES, EARLIER_CACHE

INPUTS_WITH_BATCH = (
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
    *("decoder_input_ids", "decoder_attention_mask", "pixel_values", "input_features", "input_values"),
    *("labels", "next_sentence_label", "start_positions", "end_positions", "encoder_outputs['last_hidden_state']"),
)
SEQUENCE_SIZES = (
    *("input_ids.size(-1)", "attention_mask.size(-1)", "token_type_ids.size(-1)", "position_ids.size(-1)"),
    *("inputs_embeds.size(1)", "decoder_input_ids.size(-1)", "decoder_attention_mask.size(-1)", "labels.size(1)"),
    "encoder_outputs['last_hidden_state'].size(1)",
    *("attention_mask.size(2)", "attention_mask[*].size(2)"),  # masks of queries and keys: one, or one for each kind
)
CACHE_PATHS = tuple(
    f"{cache}{part}"
    for cache in (CACHE, EARLIER_CACHE)
    for part in ("", ".self_attention_cache", ".cross_attention_cache")
)
KEYS_AND_VALUES = tuple(
    f"{cache}.layers[*].{name}"
    for cache in CACHE_PATHS
    for name in ("keys", "values", "_quantized_keys[0]", "_quantized_values[0]")
)
# A cache with a sliding window stores the number of all tokens so far, and a static cache its capacity in tokens.
CACHE_LENGTHS = tuple(
    f"{cache}.layers[*].{name}"
    for cache in CACHE_PATHS
    for name in ("cumulative_length", "cumulative_length_int", "max_cache_len")
)
CACHE_STATES = tuple(
    f"{cache}.layers[*].{name}[*]" for cache in CACHE_NAMES for name in ("conv_states", "recurrent_states")
)
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "batch": tuple(
        f"{name}.size(0)" for name in (*INPUTS_WITH_BATCH, "attention_mask[*]", *KEYS_AND_VALUES, *CACHE_STATES)
    ),
    "seq": SEQUENCE_SIZES,
    "cache": (
        "attention_mask.size(-1)",
        "attention_mask[*].size(-1)",
        *(f"{name}.size(-2)" for name in KEYS_AND_VALUES),
        *CACHE_LENGTHS,
    ),
    "kept": ("logits_to_keep",),
    "height": ("pixel_values.size(-2)",),
    "width": ("pixel_values.size(-1)",),
}
