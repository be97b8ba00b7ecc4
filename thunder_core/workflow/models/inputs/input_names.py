"""The names of the inputs of models of the transformers library."""

from __future__ import annotations

IDS, MASK, LABELS = "input_ids", "attention_mask", "labels"
DECODER_IDS = "decoder_input_ids"
