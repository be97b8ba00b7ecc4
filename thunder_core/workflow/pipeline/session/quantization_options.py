"""The check that options of quantization are used only with a recipe that quantizes."""

from __future__ import annotations

from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.prepare import PreparedModel


def require_quantizing(request: Request, prepared: PreparedModel) -> None:
    """Raise `BadOption` for an option of quantization if the recipe does not quantize, or does not use the option."""
    options = {"--calibrate": request.calibrate, "--skip-layers": request.skip_layers}
    for option in (option for option, value in options.items() if value and prepared.quantize is None):
        raise BadOption(
            f"{option} is for recipes that quantize, but {prepared.recipe.name} does not",
            fix=f"add a recipe that quantizes (--recipe int4-weight-only), or leave out {option}",
        )
    quantize = prepared.quantize
    if request.calibrate and quantize is not None and not quantize.can_be_calibrated:
        raise BadOption(
            f"--calibrate has no effect for {quantize.scheme}: its scales come from the weights and from each "
            "call's inputs",
            fix="leave out --calibrate, or use the recipe int4-weight-only",
        )
