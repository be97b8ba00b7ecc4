"""The requested lengths of generation, within the model's limits."""

from __future__ import annotations

from transformers import PretrainedConfig

from thunder_core.foundation.errors import SequenceTooLong
from thunder_core.foundation.options.generation_lengths import GenerationLengths
from thunder_core.workflow.models.inputs.sequence import longest_sequence
from thunder_core.workflow.pipeline.request.request import Request

USUAL_LENGTH = 128  # tokens, of a prompt and of the generated text
USUAL_BATCH = 8


def lengths_of(config: PretrainedConfig, request: Request) -> GenerationLengths:
    """Return the requested lengths, or the defaults within the model's number of positions.

    Raises `SequenceTooLong` for lengths that exceed the model's positions.
    """
    max_positions = longest_sequence(config)
    prompt, new = request.prompt_length, request.new_tokens
    if max_positions is not None and config.is_encoder_decoder:
        prompt, new = (min(USUAL_LENGTH, max_positions) if length is None else length for length in (prompt, new))
    elif max_positions is not None:
        prompt = max(1, min(USUAL_LENGTH, max_positions // 2, max_positions - (new or 1))) if prompt is None else prompt
        new = max(1, min(USUAL_LENGTH, max_positions - prompt)) if new is None else new
    lengths = GenerationLengths(prompt or USUAL_LENGTH, new or USUAL_LENGTH, request.batch or USUAL_BATCH)
    if max_positions is not None:
        _require_positions(config, lengths, max_positions)
    return lengths


def _require_positions(config: PretrainedConfig, lengths: GenerationLengths, max_positions: int) -> None:
    prompt, new = lengths.prompt_length, lengths.new_tokens
    if config.is_encoder_decoder:
        for name, length in (("--prompt-length", prompt), ("--new-tokens", new)):
            if length > max_positions:
                raise SequenceTooLong(
                    f"{name} {length} exceeds the model's {max_positions} positions",
                    fix=f"set {name} to at most {max_positions}",
                )
    elif lengths.total > max_positions:
        rest = (
            f"--prompt-length {max_positions - new}"
            if new < max_positions
            else f"--prompt-length {max_positions // 2} --new-tokens {max_positions // 2}"
        )
        raise SequenceTooLong(
            f"prompts of {prompt} tokens and {new} new tokens are {lengths.total} tokens, but the model has "
            f"{max_positions} positions",
            fix=f"use {rest}, or fewer --new-tokens",
        )
