"""The request of a validation of an artifact; checked before PyTorch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thunder_core.foundation.options import option, require_values, same_option
from thunder_core.foundation.options.tolerance import Tolerance, requested_tolerance
from thunder_core.workflow.models.inputs.data_file import require_samples_of_metric
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline.request.request import Request


@dataclass(frozen=True)
class ValidateRequest:
    """The inputs and bounds of the comparison with eager PyTorch, and whether the artifact is marked as validated."""

    inputs: int = same_option(
        Request,
        "inputs",
        help="Number of random inputs of the traced sizes, or of batches from --input. With random inputs, the sizes "
        "of dynamic ranges are validated in addition",
    )
    seed: int | None = same_option(
        ModelRequest,
        "seed",
        default=None,
        panel="",
        help="Seed for the random inputs",
        default_text="the artifact's seed",
    )
    write: bool = option(
        True,
        bool,
        name="no-write",
        negative=True,
        help="Do not mark the artifact as validated.",
    )
    allow_non_finite: bool = same_option(Request, "allow_non_finite")
    input: Path | None = same_option(Request, "input")
    evaluate: Path | None = same_option(Request, "evaluate")
    metric: str | None = same_option(Request, "metric")
    validate_budget: float | None = same_option(Request, "validate_budget")
    tolerance: tuple[str, ...] = option(
        (),
        metavar="[NAME=]X",
        repeats=True,
        help="Largest error, as a multiple of eager PyTorch's error. Both are measured against higher precision. "
        "NAME=X sets another bound: floor (an error that always passes), kl (KL divergence) or top1 (top-1 agreement)",
        default_text="the artifact's tolerance, or its recipe's if that is stricter",
        check=lambda option, text: requested_tolerance(option, (text,), Tolerance()),
    )


def check_validate_request(request: ValidateRequest) -> None:
    """Raise an error for invalid numbers, missing files, and a metric without samples."""
    require_values(request)
    require_samples_of_metric(request.metric, request.evaluate)
