"""The base of recipes that quantize: their options, the transform that these describe, and the bound of the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from thunder_core.options.quality import Quality
from thunder_core.recipe import RecipeOptions, Transform
from thunder_core.transforms.quantize import Quantize
from thunder_recipes.default import Default

BOUNDS = ("error", "kl", "top1")


class QuantizationOptions(RecipeOptions):
    """The options that `--set name=value` sets."""

    targets: str = Field("*", description="patterns of the names of the layers to quantize, separated by commas")
    skip: str = Field("", description="patterns of the names of layers to leave as they are")
    embeddings: bool = Field(True, description="whether the table of tokens is quantized too, to 8 bits at the least")
    error: float | None = Field(None, gt=0, description="the most that the outputs may lose, as a part of their norm")
    kl: float | None = Field(None, gt=0, description="the most that logits may diverge from the float model's, in nats")
    top1: float | None = Field(None, ge=0, le=1, description="the least share of equal most probable tokens")


class GroupOptions(QuantizationOptions):
    """The options of 4 bits."""

    group_size: int = Field(
        0, ge=0, description="columns that share a scale; 0 is 64, 32 or 16, the first that divides"
    )


class QuantizedRecipe(Default):
    """A recipe that quantizes by the scheme of its name, with the bound of that scheme."""

    bound: ClassVar[Quality] = Quality()

    class Options(QuantizationOptions):
        """The options that `--set name=value` sets."""

    def setup_transforms(self) -> tuple[Transform, ...]:
        """The exchange of layers for quantized ones, by the options."""
        given: dict[str, Any] = {name: value for name, value in self.chosen.model_dump().items() if name not in BOUNDS}
        given |= {name: patterns_of(given.pop(name)) for name in ("targets", "skip")}
        return (*super().setup_transforms(), Quantize(self.title, **given))

    def quality(self) -> Quality:
        """The scheme's bound, with what the options say of it."""
        stated = {name: value for name in BOUNDS if (value := self.chosen.model_dump()[name]) is not None}
        return replace(self.bound, **stated)


def patterns_of(text: str) -> tuple[str, ...]:
    """The patterns of an option: `*.mlp.*,lm_head`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
