"""What a recipe is: its options, its families, its sum with others, its tolerance and what a machine lacks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
import torch
from pydantic import Field

from thunder_core.errors import BadOption, RecipeMismatch, UnknownName
from thunder_core.ir.trace import Trace
from thunder_core.recipe import (
    TOLERANCES,
    Lookaside,
    Package,
    Plugin,
    Recipe,
    RecipeOptions,
    Tolerance,
    Transform,
    hyphenated,
    order_transforms,
    recipes_for,
)


@dataclass(frozen=True)
class Quantize(Transform):
    """Stands for a transform that needs a package."""

    needs = (Package("no_such_backend"),)
    before = ("Shard",)

    def __call__(self, trace: Trace) -> Trace:
        return trace


@dataclass(frozen=True)
class Shard(Transform):
    """Stands for another transform."""

    def __call__(self, trace: Trace) -> Trace:
        return trace


class Careful(Recipe):
    """A recipe with options.

    And a second paragraph.
    """

    class Options(RecipeOptions):
        """Its options."""

        bits: int = Field(8, ge=2, le=16, description="width of a weight")
        scheme: Literal["rows", "tensors"] = "rows"
        exact: bool = False


class Loose(Recipe):
    """A recipe for one family that lets more pass."""

    families: ClassVar[tuple[str, ...]] = ("bert",)
    executors = ("torch", "swift")

    def setup_transforms(self) -> tuple[Transform, ...]:
        return (*super().setup_transforms(), Shard())

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return Tolerance(floor=1.0, top1=0.5)


class Named(torch.nn.Module):
    """A model with the config of a family."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.config = type("Config", (), {"model_type": family})()


def test_options_have_defaults() -> None:
    assert Careful().options == {"bits": 8, "scheme": "rows", "exact": False}
    assert Recipe().options == {}


def test_options_are_read_from_text_and_from_values() -> None:
    expected = {"bits": 4, "scheme": "tensors", "exact": True}
    assert Careful(bits="4", scheme="tensors", exact="true").options == expected
    assert Careful(**expected).options == expected


@pytest.mark.parametrize("given", [{"bits": "many"}, {"bits": 99}, {"scheme": "columns"}, {"exact": "perhaps"}])
def test_a_bad_value_names_option_and_value(given: dict[str, object]) -> None:
    ((name, value),) = given.items()
    with pytest.raises(BadOption) as caught:
        Careful(**given)
    assert f"{name}={value!r}" in str(caught.value)


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="has no option 'bit'") as caught:
        Careful(bit=4)
    assert "did you mean bits?" in caught.value.fix


def test_names_come_from_classes() -> None:
    names = ("HFLlama3Hopper", "Default", "HFTransformers", "MyBERTRecipe")
    assert [*map(hyphenated, names)] == ["hf-llama3-hopper", "default", "hf-transformers", "my-bert-recipe"]
    assert Careful().name == "careful"
    assert Careful.summary() == "A recipe with options."


def test_a_recipe_without_families_takes_every_module() -> None:
    Recipe().validate(torch.nn.Linear(1, 1))
    Loose().validate(Named("bert"))


@pytest.mark.parametrize(
    ("model", "found", "advice"),
    [
        (Named("llama"), "this model is llama", "hf-llama or hf-llama3 or hf-llama3-hopper or hf-transformers"),
        (Named("mamba"), "this model is mamba", "use a recipe that takes it: hf-transformers"),
        (torch.nn.Linear(1, 1), "this model is Linear", "use a recipe that takes it: default"),
    ],
)
def test_another_family_is_refused_with_advice(model: torch.nn.Module, found: str, advice: str) -> None:
    with pytest.raises(RecipeMismatch) as caught:
        Loose().validate(model)
    assert found in caught.value.what
    assert "loose is for bert" in caught.value.what
    assert advice in caught.value.fix


def test_recipes_for_a_family() -> None:
    assert recipes_for("bert") == ("hf-bert",)
    assert recipes_for(None) == ()


def test_a_sum_has_the_parts_of_both() -> None:
    lookaside = Lookaside(torch.sin, torch.cos)
    plugin = Plugin("more", lookasides=(lookaside,), transforms=(Quantize(),), executors=("fast", "torch"))
    both = Careful(bits=4) + plugin + Loose()
    assert both.name == "careful + more + loose"
    assert both.options["bits"] == 4
    assert both.setup_lookasides() == (lookaside,)
    assert both.setup_executors() == ("fast", "swift", "torch")
    assert both.setup_transforms() == (Quantize(), Shard())


def test_a_sum_leaves_its_parts_alone() -> None:
    recipe, plugin = Careful(), Plugin("more", transforms=(Shard(),))
    assert (recipe + plugin).setup_transforms() == (Shard(),)
    assert recipe.setup_transforms() == ()


def test_the_order_of_a_sum_does_not_matter_to_transforms() -> None:
    quantize, shard = Plugin("quantize", transforms=(Quantize(),)), Plugin("shard", transforms=(Shard(),))
    one, other = Recipe() + quantize + shard, Recipe() + shard + quantize
    assert order_transforms(one.setup_transforms()) == order_transforms(other.setup_transforms())
    assert order_transforms(one.setup_transforms()) == (Quantize(), Shard())


def test_a_sum_is_as_strict_about_models_as_each_part() -> None:
    with pytest.raises(RecipeMismatch, match="loose is for bert"):
        (Careful() + Loose()).validate(Named("llama"))


def test_a_sum_is_as_tolerant_as_its_loosest_part() -> None:
    both = (Careful() + Loose()).tolerance(torch.float32)
    assert (both.floor, both.top1) == (1.0, 0.5)


def test_tolerances_grow_with_rounding() -> None:
    recipe = Recipe()
    exact_first = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    floors = [recipe.tolerance(dtype).floor for dtype in exact_first]
    assert floors == sorted(floors)
    assert recipe.tolerance(torch.float8_e4m3fn) == TOLERANCES[torch.float32], "unknown dtypes get the strict one"


def test_what_is_missing_is_listed_with_its_part() -> None:
    recipe = Careful() + Plugin("more", transforms=(Quantize(),), needs=(Package("another_backend", extra="triton"),))
    assert [(one.part, one.reason) for one in recipe.degraded()] == [
        ("more", "another_backend is not installed"),
        (Quantize().name, "no_such_backend is not installed"),
    ]
    assert Careful().degraded() == ()
