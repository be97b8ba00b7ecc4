"""A recipe: its options, its families, its sum with others, its tolerance and its missing requirements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import pytest
import torch
from pydantic import Field, model_validator

from thunder_core.backend.claiming.executor import Executor, OperatorExecutor
from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
from thunder_core.backend.fusion.region import Region
from thunder_core.foundation.errors import BadOption, BadRecipe, RecipeConflict, RecipeMismatch, UnknownName
from thunder_core.passes.recipe import (
    TOLERANCES,
    Lookaside,
    Package,
    Plugin,
    Recipe,
    RecipeOptions,
    Tolerance,
    Transform,
    order_transforms,
    recipes_for,
)
from thunder_core.passes.recipe.options import hyphenate
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class Quantize(Transform):
    """A transform that needs a package."""

    requirements = (Package("no_such_backend"),)
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
    """A recipe for one family with a loose tolerance."""

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


def test_a_validator_of_all_options_names_none() -> None:
    class Options(RecipeOptions):
        low: int = 0
        high: int = 0

        @model_validator(mode="after")
        def ordered(self) -> Self:
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    with pytest.raises(BadOption, match=r"recipe mine does not accept \{'low': 3\}: Value error, low is above high"):
        type("Mine", (Recipe,), {"Options": Options})(low=3)


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="has no option 'bit'") as caught:
        Careful(bit=4)
    assert "did you mean bits?" in caught.value.fix


def test_names_come_from_classes() -> None:
    names = ("HFLlama3Hopper", "Default", "HFTransformers", "MyBERTRecipe")
    assert [*map(hyphenate, names)] == ["hf-llama3-hopper", "default", "hf-transformers", "my-bert-recipe"]
    assert Careful().name == "careful"
    assert Careful.summary() == "A recipe with options."


def test_a_recipe_without_families_takes_every_module() -> None:
    Recipe().validate(torch.nn.Linear(1, 1))
    Loose().validate(Named("bert"))


@pytest.mark.parametrize(
    ("model", "found", "advice"),
    [
        (Named("llama"), "this model is llama", "hf-llama or hf-llama3 or hf-llama3-hopper or hf-transformers"),
        (Named("mamba"), "this model is mamba", "use a recipe for this model: hf-transformers"),
        (torch.nn.Linear(1, 1), "this model is Linear", "use a recipe for this model: default"),
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
    assert both.name == "careful + loose + more"
    assert both.options["bits"] == 4
    assert both.all_lookasides() == (lookaside,)
    assert both.all_executors() == ("fast", "swift", "torch")
    assert both.all_transforms() == (Quantize(), Shard())


def test_a_sum_leaves_its_parts_alone() -> None:
    recipe, plugin = Careful(), Plugin("more", transforms=(Shard(),))
    assert (recipe + plugin).all_transforms() == (Shard(),)
    assert recipe.all_transforms() == ()


def test_the_order_of_a_sum_does_not_matter_to_transforms() -> None:
    quantize, shard = Plugin("quantize", transforms=(Quantize(),)), Plugin("shard", transforms=(Shard(),))
    first, second = Recipe() + quantize + shard, Recipe() + shard + quantize
    assert order_transforms(first.all_transforms()) == order_transforms(second.all_transforms())
    assert order_transforms(first.all_transforms()) == (Quantize(), Shard())


def test_a_sum_is_as_strict_about_models_as_each_part() -> None:
    with pytest.raises(RecipeMismatch, match="loose is for bert"):
        (Careful() + Loose()).validate_all(Named("llama"))


def test_a_sum_is_as_tolerant_as_its_loosest_part() -> None:
    both = (Careful() + Loose()).loosest_tolerance(torch.float32)
    assert (both.floor, both.top1) == (1.0, 0.5)


def test_tolerances_grow_with_rounding() -> None:
    recipe = Recipe()
    exact_first = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    floors = [recipe.tolerance(dtype).floor for dtype in exact_first]
    assert floors == sorted(floors)
    assert recipe.tolerance(torch.float8_e4m3fn) == TOLERANCES[torch.float32], "unknown dtypes get the strict one"


def test_missing_requirements_are_listed_with_their_part() -> None:
    recipe = Careful() + Plugin(
        "more", transforms=(Quantize(),), requirements=(Package("another_backend", extra="triton"),)
    )
    assert [(part.part, part.reason) for part in recipe.skipped_parts()] == [
        ("more", "another_backend is not installed"),
        (Quantize().name, "no_such_backend is not installed"),
    ]
    assert Careful().skipped_parts() == ()


def test_a_sum_keeps_the_state_of_its_recipes() -> None:
    class Stateful(Recipe):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.width = width
            self.executors = ("sdpa", "torch")

        def setup_transforms(self) -> tuple[Transform, ...]:
            return (Shard(),) if self.width == 3 else ()

    both = Stateful(3) + Plugin("more", transforms=(Quantize(),))
    assert both.width == 3
    assert both.all_transforms() == (Quantize(), Shard())
    assert both.all_executors() == ("sdpa", "torch")


def test_a_sum_has_the_parts_added_to_a_recipe_that_overrides_everything() -> None:
    class Alone(Recipe):
        def validate(self, model: torch.nn.Module) -> None:
            pass

        def setup_transforms(self) -> tuple[Transform, ...]:
            return ()

        def setup_executors(self) -> tuple[str, ...]:
            return ("sdpa",)

        def setup_lookasides(self) -> tuple[Lookaside, ...]:
            return ()

        def setup_requirements(self) -> tuple[tuple[str, Package], ...]:
            return ()

        def tolerance(self, dtype: torch.dtype) -> Tolerance:
            return Tolerance(floor=0.0)

    plugin = Plugin("more", (Lookaside(torch.sin, torch.cos),), (Shard(),), ("fast",), (Package("no_such_backend"),))
    both = Alone() + plugin + Loose()
    assert both.all_transforms() == (Shard(),)
    assert both.all_executors() == ("fast", "sdpa", "swift", "torch")
    assert (len(both.all_lookasides()), len(both.all_requirements())) == (1, 1)
    assert both.loosest_tolerance(torch.float32).floor == 1.0
    with pytest.raises(RecipeMismatch):
        both.validate_all(Named("llama"))


UNREAD = {
    "setup_operator": lambda self: (),
    "setup_needs": lambda self: (),
    "setup_transform": lambda self: (),
    "executers": ("torch",),
    "family": ("llama",),
    "transforms": (Shard(),),
    "lookasides": (),
    "need": (),
    "tolerence": lambda self, dtype: Tolerance(),
    "Option": RecipeOptions,
}


@pytest.mark.parametrize("name", UNREAD)
def test_unknown_attributes_of_a_recipe_are_refused(name: str) -> None:
    with pytest.raises(BadRecipe, match=name):
        type("Mine", (Recipe,), {name: UNREAD[name]})
    with pytest.raises(BadRecipe, match=name):  # attributes of a mixin are declared, too
        type("Mine", (type("Mixin", (), {name: UNREAD[name]}), Recipe), {})


def test_the_nearest_known_name_is_suggested() -> None:
    with pytest.raises(BadRecipe) as caught:
        type("Mine", (Recipe,), {"setup_transform": lambda self: ()})
    assert "did you mean setup_transforms" in caught.value.fix
    with pytest.raises(BadRecipe, match="Mine declares executers") as caught:
        type("Mine", (Recipe,), {"executers": ()})
    assert "did you mean executors" in caught.value.fix


def test_options_are_of_their_class() -> None:
    with pytest.raises(BadRecipe, match="Mine: Options is not a subclass of RecipeOptions"):
        type("Mine", (Recipe,), {"Options": type("Options", (), {"bits": 8})})


def test_a_recipe_may_have_other_attributes() -> None:
    type("Mine", (Recipe,), {"_executers": (), "width": 3, "helper": lambda self: 3, "LAYERS": (1, 2)})


@pytest.mark.parametrize("name", ["setup_compiler", "setup_needs"])
def test_unknown_methods_of_a_plugin_are_refused(name: str) -> None:
    with pytest.raises(BadRecipe, match=name):
        type("Mine", (Plugin,), {name: lambda self: ()})


@pytest.mark.parametrize(
    "declared",
    [
        {"families": "llama"},
        {"executors": "triton"},
        {"needs": (Package("x"),)},
        {"requirements": Package("x")},
        {"requirements": (Package,)},
        {"parts": "one"},
    ],
)
def test_a_text_or_an_object_is_no_tuple(declared: dict[str, object]) -> None:
    with pytest.raises(BadRecipe, match=f"Mine: {next(iter(declared))}"):
        type("Mine", (Recipe,), declared)


@pytest.mark.parametrize(
    "given",
    [
        {"transforms": Shard()},
        {"transforms": (Shard,)},
        {"executors": "torch"},
        {"needs": 3},
        {"needs": (Package("x"),)},
    ],
)
def test_a_plugin_is_made_of_tuples(given: dict[str, object]) -> None:
    with pytest.raises(BadRecipe, match=f"more: {next(iter(given))}"):
        Plugin("more", **given)


@pytest.mark.parametrize("found", [None, Shard(), (Shard,), ("shard",), "shard", Shard])
def test_return_values_of_recipe_methods_are_checked(found: object) -> None:
    kind = type("Mine", (Recipe,), {"setup_transforms": lambda self: found})
    with pytest.raises(BadRecipe, match="Mine: setup_transforms"):
        kind().all_transforms()


def test_a_class_instead_of_an_instance_is_reported() -> None:
    with pytest.raises(BadRecipe) as caught:
        Plugin("more", transforms=(Shard,))
    assert caught.value.fix == "write Shard()"


@dataclass
class Own(FusionExecutor):
    """An executor that is not hashable, like a mutable dataclass."""

    name: str
    claims: str = ""

    def fuses(self, bsym: BoundSymbol) -> bool:
        return False

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        return []


@pytest.mark.parametrize("own", [OperatorExecutor("own"), Own("own")], ids=["operator", "fusion"])
def test_executors_may_be_objects(own: Executor) -> None:
    kind = type("Mine", (Recipe,), {"executors": (own, "sdpa", own, "torch")})
    assert kind().all_executors() == (own, "sdpa", "torch")
    assert (Recipe() + Plugin("more", executors=(own, "torch"))).all_executors() == (own, "torch")
    assert (Recipe() + own).all_executors() == (own, "torch")
    assert (kind() + Plugin("more", executors=("own", "sdpa"))).all_executors() == (own, "sdpa", "torch")
    with pytest.raises(RecipeConflict, match="more lists sdpa before own") as caught:
        (kind() + Plugin("more", executors=("sdpa", "own"))).all_executors()
    assert "mine lists own before sdpa" in caught.value.what


def test_two_executors_of_one_name_are_in_conflict() -> None:
    with pytest.raises(RecipeConflict, match=r"two (executors|plug-ins) have the name own"):
        (Recipe() + OperatorExecutor("own") + OperatorExecutor("own")).all_executors()


def test_sums_of_everything_that_has_parts() -> None:
    quantize, shard = Plugin("quantize", transforms=(Quantize(),)), Plugin("shard", transforms=(Shard(),))
    lookaside = Lookaside(torch.sin, torch.cos)
    assert (Recipe() + Shard()).all_transforms() == (Shard(),)
    assert (Shard() + Recipe()).all_transforms() == (Shard(),)
    assert (Recipe() + lookaside).all_lookasides() == (lookaside,)
    assert (quantize + shard).name == "quantize + shard"
    for both in (
        Recipe() + (quantize + shard),
        quantize + shard + Recipe(),
        quantize + (shard + Recipe()),
        Recipe + quantize + shard,
    ):
        assert set(both.all_transforms()) == {Quantize(), Shard()}
    assert (Careful() + Loose).recipes[1].name == "loose"
    assert {component.transforms for component in (Shard() + quantize).components} == {(Quantize(),), (Shard(),)}
    missing = Plugin("a", requirements=(Package("no_a"),)) + Plugin("b", requirements=(Package("no_b"),))
    assert [part.part for part in (Recipe() + missing).skipped_parts()] == ["a", "b"]


@pytest.mark.parametrize("other", [[], "hf-llama", None, 3, torch.sin, Shard, Quantize])
def test_nothing_else_is_added(other: object) -> None:
    for part in (Recipe(), Plugin("more")):
        with pytest.raises(BadRecipe, match="a recipe cannot be added to"):
            part + other
        with pytest.raises((BadRecipe, TypeError)):
            other + part
