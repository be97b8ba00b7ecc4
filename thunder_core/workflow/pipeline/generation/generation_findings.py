"""The validation of a session that generates: of a model that was just compiled, as of an artifact."""

from __future__ import annotations

from thunder_core.foundation.options.generation_lengths import GenerationLengths
from thunder_core.workflow.pipeline.generation.generation_calls import inputs_of
from thunder_core.workflow.pipeline.session.session import Advance, Session
from thunder_core.workflow.validation.generation import validate_generation
from thunder_core.workflow.validation.report import GenerationReport

UNTRACED = 1  # how far the seed of prompts to validate on is from that of traced ones


def generation_report(
    session: Session, lengths: GenerationLengths, seed: int, *, allow_non_finite: bool, advance: Advance
) -> GenerationReport:
    """The comparison with eager generation, behind prompts that were not traced; raises as `validate_generation` does.

    `seed` is that of the prompts that were traced.
    """
    prompts = [(str(one), inputs_of(session, one, seed + UNTRACED)) for one in lengths.tried()]
    return validate_generation(
        session.compiled,
        session.model,
        prompts,
        lengths.new_tokens,
        session.tolerance(session.loaded.model.dtype),
        allow_non_finite=allow_non_finite,
        progress=advance,
    )
