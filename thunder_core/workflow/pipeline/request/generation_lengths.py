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
    most = longest_sequence(config)
    prompt, new = request.prompt_length, request.new_tokens
    if most is not None and config.is_encoder_decoder:
        prompt, new = (min(USUAL_LENGTH, most) if length is None else length for length in (prompt, new))
    elif most is not None:
        prompt = max(1, min(USUAL_LENGTH, most // 2, most - (new or 1))) if prompt is None else prompt
        new = max(1, min(USUAL_LENGTH, most - prompt)) if new is None else new
    lengths = GenerationLengths(prompt or USUAL_LENGTH, new or USUAL_LENGTH, request.batch or USUAL_BATCH)
    if most is not None:
        _require_positions(config, lengths, most)
    return lengths


def _require_positions(config: PretrainedConfig, lengths: GenerationLengths, most: int) -> None:
    prompt, new = lengths.prompt_length, lengths.new_tokens
    if config.is_encoder_decoder:
        for name, length in (("--prompt-length", prompt), ("--new-tokens", new)):
            if length > most:
                raise SequenceTooLong(
                    f"{name} {length} exceeds the model's {most} positions",
                    fix=f"set {name} to at most {most}",
                )
    elif lengths.total > most:
        rest = (
            f"--prompt-length {most - new}" if new < most else f"--prompt-length {most // 2} --new-tokens {most // 2}"
        )
        raise SequenceTooLong(
            f"prompts of {prompt} tokens and {new} new tokens are {lengths.total} tokens, but the model has {most} "
            "positions",
            fix=f"use {rest}, or fewer --new-tokens",
        )
