"""The validation of a session that generates, for a new model and for an artifact."""

from __future__ import annotations

from thunder_core.foundation.options.generation_lengths import GenerationLengths
from thunder_core.workflow.pipeline.generation.generation_calls import inputs_of
from thunder_core.workflow.pipeline.session.session import Advance, Session
from thunder_core.workflow.validation.generation import validate_generation
from thunder_core.workflow.validation.report import GenerationReport

SEED_OFFSET = 1  # the difference of the seed for validation from the seed of the traced prompts


def generation_report(
    session: Session, lengths: GenerationLengths, seed: int, *, allow_non_finite: bool, advance: Advance
) -> GenerationReport:
    """Return the comparison with eager generation on new prompts; raise the errors of `validate_generation`.

    `seed` is the seed of the traced prompts.
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
