"""The base class of recipes that quantize: their options, their transform, and the bounds on their quality loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from thunder_core.foundation.options.quality import Quality
from thunder_core.passes.recipe import RecipeOptions, Transform
from thunder_core.passes.transforms.quantize import Quantize
from thunder_recipes.default import Default

BOUNDS = ("error", "kl", "top1")


class QuantizationOptions(RecipeOptions):
    """The options that `--set name=value` sets."""

    targets: str = Field("*", description="name patterns of the layers to quantize, separated by commas")
    skip: str = Field("", description="name patterns of the layers to skip, separated by commas")
    embeddings: bool = Field(True, description="also quantize the token embeddings, to at least 8 bits")
    error: float | None = Field(None, gt=0, description="largest relative error of the outputs")
    kl: float | None = Field(
        None, gt=0, description="largest KL divergence of the logits from the float model's, in nats"
    )
    top1: float | None = Field(None, ge=0, le=1, description="smallest top-1 agreement with the float model")


class GroupOptions(QuantizationOptions):
    """The options of recipes with 4-bit weights."""

    group_size: int = Field(
        0, ge=0, description="columns that share a scale; 0 means 64, 32 or 16, the first that divides the columns"
    )


class QuantizedRecipe(Default):
    """A recipe that quantizes with the scheme after which it is named, and checks the scheme's quality bounds."""

    bound: ClassVar[Quality] = Quality()

    class Options(QuantizationOptions):
        """The options that `--set name=value` sets."""

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transform that replaces layers by quantized layers, with the options."""
        options: dict[str, Any] = {
            name: value for name, value in self.chosen.model_dump().items() if name not in BOUNDS
        }
        options |= {name: patterns_of(options.pop(name)) for name in ("targets", "skip")}
        return (*super().setup_transforms(), Quantize(self.title, **options))

    def quality(self) -> Quality:
        """Return the scheme's bounds, overridden by the options."""
        bounds = {name: value for name in BOUNDS if (value := self.chosen.model_dump()[name]) is not None}
        return replace(self.bound, **bounds)


def patterns_of(text: str) -> tuple[str, ...]:
    """Split an option's string, such as `*.mlp.*,lm_head`, into patterns."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
