"""Validate a compiled `generate` against eager generation, for a new model and for an artifact."""

from __future__ import annotations

from thunder_core.foundation.options.generation_lengths import GenerationLengths
from thunder_core.workflow.pipeline.generation.generation_calls import inputs_of
from thunder_core.workflow.pipeline.session.session import Advance, Session
from thunder_core.workflow.validation.generation import validate_generation
from thunder_core.workflow.validation.report import GenerationReport

SEED_OFFSET = 1  # added to the seed of the traced prompts, so that validation has other prompts


def generation_report(
    session: Session, lengths: GenerationLengths, seed: int, *, allow_non_finite: bool, advance: Advance
) -> GenerationReport:
    """Return the report on the comparison with eager generation on new prompts.

    `seed` is the seed of the traced prompts. Raises the errors of `validate_generation`.
    """
    prompts = [(str(length), inputs_of(session, length, seed + SEED_OFFSET)) for length in lengths.validation_prompts()]
    return validate_generation(
        session.generator,
        session.model,
        prompts,
        lengths.new_tokens,
        session.tolerance(session.rounding_dtype),
        dtype=session.rounding_dtype,
        allow_non_finite=allow_non_finite,
        progress=advance,
    )
