"""Open a session of several ranks: each rank loads the model, quantizes it, and divides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thunder_core.workflow.pipeline.quantization import Quantization, with_skipped_layers
from thunder_core.workflow.pipeline.ranks.link import Link
from thunder_core.workflow.pipeline.ranks.session import RanksSession, open_rank
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.session import Advance
from thunder_core.workflow.validation.report import QuantizationReport

SKIP = "skip"  # the command that names the layers that stay in floating point


def open_ranks(
    plan: Plan, link: Link, begin: Callable[[str], None], advance: Advance
) -> tuple[Plan, RanksSession, QuantizationReport | None]:
    """Load the model of a plan, quantize it if the recipe quantizes, and compile the part of this rank.

    The first rank compares the quantized model with the float model; the returned plan names the layers that were left
    in floating point, the same on all ranks. Raises the errors of `Quantization`.
    """
    in_order = tuple(transform for transform in plan.prepared.in_order if not transform.is_parallel)
    in_one_process = replace(plan, prepared=replace(plan.prepared, in_order=in_order))
    quantization = Quantization(in_one_process, begin, advance)
    session, quality = quantization.open_session(), None
    if session.loaded.original is not None:
        if link.launch.follows:
            skipped = link.receive_from_first()
            session = quantization.with_float_layers(session, skipped) if skipped else session
        else:
            link.others_receive = True
            _, session, quality = quantization.check_quality(session)
            skipped = () if quality is None else quality.skipped
            link.send((SKIP, skipped))
        plan = replace(plan, prepared=with_skipped_layers(plan.prepared, skipped))
    ranks_session = open_rank(plan.prepared, session, link)
    link.others_receive = True
    return plan, ranks_session, quality
