"""A sum of recipes does not depend on the order of its parts: its contents, its name and its program."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption, BadRecipe, RecipeConflict, ThunderError, UnknownName
from thunder_core.passes.recipe import Plugin, Recipe, RecipeOptions, Transform, order_transforms
from thunder_core.passes.recipe.composition import reasons
from thunder_core.passes.transforms.dce import DropDeadCode
from thunder_core.passes.transforms.functionalize import Functionalize
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.pipeline.request.recipes import find_recipe, recipe_class

SHIPPED = [recipe.name for recipe in plugins.listing("recipes")]


@dataclass(frozen=True)
class Pack(Transform):
    """A transform of some modules, which may be given once for each module."""

    modules: str = "*"
    bits: int = 8
    distinct_by = ("modules",)
    provides = ("packing",)

    def __call__(self, trace: Trace) -> Trace:
        return trace


@dataclass(frozen=True)
class Inspect(Transform):
    """A transform that runs after all packing."""

    after = ("packing",)

    def __call__(self, trace: Trace) -> Trace:
        return trace


FAST = OperatorExecutor("fast")
DOUBLED = Lookaside(torch.nn.functional.softsign, torch.nn.functional.tanh)
PARTS: Sequence[object] = (
    *map(recipe_class, SHIPPED),
    *(Pack(), Pack("layers.0"), Inspect(), Functionalize(), FAST, DOUBLED),
    Plugin("small", settings={"memory_budget": 0.5}),
    Plugin("listed", executors=("triton", "fast")),
)


def facts(parts: Sequence[object]) -> object:
    """All properties of a sum of parts, or the error that it raises."""
    try:
        recipe = find_recipe(list(parts), {})
        composition = recipe.composition
        composition.require_consistent()
        steps = list(reasons(composition, (DropDeadCode(),)))
        return (
            *(recipe.name, recipe.options, steps, composition.transforms().in_order(), composition.executor_order),
            *(composition.lookasides, composition.settings, composition.requirements),
            *(recipe.symbolic_arguments(), recipe.all_dimensions(), recipe.shared_sample),
            recipe.loosest_tolerance(torch.float32),
        )
    except ThunderError as error:
        return error.code, error.what


@pytest.mark.parametrize("pair", list(itertools.combinations(range(len(PARTS)), 2)))
def test_two_parts_are_the_same_both_ways(pair: tuple[int, int]) -> None:
    first, second = (PARTS[place] for place in pair)
    default = recipe_class("default")
    assert facts((default, first, second)) == facts((second, default, first)) == facts((first, second, default))


def test_random_sets_are_the_same_in_every_order() -> None:
    draw = random.Random(17)
    whole = 0
    for _ in range(500):
        parts = [*draw.sample(PARTS, draw.randint(2, 6)), recipe_class("default")]
        expected = facts(parts)
        whole += len(expected) > 2  # type: ignore[arg-type]
        assert facts(draw.sample(parts, len(parts))) == expected
    assert whole > 250, "most of them are no errors"


def relu(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:  # noqa: A002 - as PyTorch calls it
    """Another activation function."""
    return input.relu()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_program_is_the_same_in_every_order(order: tuple[int, ...]) -> None:
    parts = (recipe_class("default"), Functionalize(), Lookaside(torch.nn.functional.gelu, relu))
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU()), torch.randn(2, 3)
    compiled = thunder.compile(model, [parts[place] for place in order] + [Plugin("none")], symbolic=())
    with torch.no_grad():
        assert torch.equal(compiled(x), model[0](x).relu())
    names = [bsym.symbol.short_name for bsym in thunder.last_traces(compiled)[0].bound_symbols]
    assert names == ["linear", "relu"]


def test_two_instances_combine_if_their_modules_differ() -> None:
    both = order_transforms([Pack("b"), Pack("a", bits=4)])
    assert both == (Pack("a", bits=4), Pack("b"))
    with pytest.raises(RecipeConflict, match="the same transform with different options"):
        order_transforms([Pack("a"), Pack("a", bits=4)])


def test_transform_is_ordered_by_the_trait_that_it_provides() -> None:
    assert order_transforms([Inspect(), Pack()]) == (Pack(), Inspect())


class Sharing(Recipe):
    """A recipe that another recipe excludes."""

    class Options(RecipeOptions):
        """An option that the other recipe has too."""

        width: int = 1


class Alone(Recipe):
    """A recipe that excludes `Sharing`."""

    excludes: ClassVar[tuple[str, ...]] = ("sharing",)

    class Options(RecipeOptions):
        """An option that the other recipe has too."""

        width: int = 2
        height: int = 3


class Needy(Recipe):
    """A recipe that needs packing."""

    needs: ClassVar[tuple[str, ...]] = ("packing",)
    after: ClassVar[tuple[str, ...]] = ("packing",)

    def setup_transforms(self) -> tuple[Transform, ...]:
        return (Functionalize(),)


def test_exclusion_and_need_name_both_parties() -> None:
    with pytest.raises(RecipeConflict, match="alone excludes sharing") as caught:
        (Sharing() + Alone()).composition.require_consistent()
    assert caught.value.fix == "leave out alone or sharing"
    with pytest.raises(RecipeConflict, match="needy needs packing") as caught:
        Needy().composition.require_consistent()
    assert caught.value.fix == "add packing, or leave out needy"
    (Needy() + Pack()).composition.require_consistent()


def test_parts_of_a_recipe_follow_the_parts_that_it_comes_after() -> None:
    assert (Recipe() + Functionalize() + Pack()).all_transforms() == (Functionalize(), Pack())
    both = Needy() + Plugin("weights", transforms=(Pack(),), provides=("packing",))
    assert both.all_transforms() == (Pack(), Functionalize())
    told = {name: why for _, name, why in reasons(both.composition)}
    assert told["Functionalize"] == ("Functionalize comes after Pack(modules='*'), since needy comes after packing",)


def test_an_unknown_trait_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="needs names 'defualt'") as caught:
        (Recipe() + Plugin("mine", needs=("defualt",))).composition.require_consistent()
    assert "did you mean default" in caught.value.fix


def test_settings_of_several_parts_agree_or_are_refused() -> None:
    small, large = Plugin("small", settings={"memory_budget": 0.5}), Plugin("large", settings={"memory_budget": 1.0})
    assert (Recipe() + small).composition.settings == {"memory_budget": 0.5}
    with pytest.raises(RecipeConflict, match=r"large sets memory_budget=1.0, but small sets memory_budget=0.5"):
        _ = (small + large + Recipe()).composition.settings
    for settings, error in (({"memory": 1}, BadRecipe), ({"memory_budget": -1}, BadOption), (3, BadRecipe)):
        kind = type("Mine", (Recipe,), {"setup_config": lambda self, settings=settings: settings})
        with pytest.raises(error):
            _ = kind().composition.settings


def test_settings_reach_the_compiler() -> None:
    class Numbers(Recipe):
        """A recipe with symbolic numbers that allows branches."""

        def setup_config(self) -> dict[str, object]:
            return {"cache": "symbolic values", "data_dependent": "guard", "max_programs": 3}

    compiled = thunder.compile(torch.nn.ReLU(), Numbers())
    for rows in range(2, 6):
        compiled(torch.randn(rows, 2))
    assert thunder.cache_misses(compiled) == 1
    options = thunder.compiler.specializations_of(compiled).options
    assert (options.cache, options.data_dependent, options.max_programs) == ("symbolic values", "guard", 3)
    given = thunder.compile(torch.nn.ReLU(), Numbers(), max_programs=7)
    assert thunder.compiler.specializations_of(given).options.max_programs == 7


def test_parts_are_added_inline() -> None:
    recipe = Recipe().with_(
        transforms=[Pack()], executors=["sdpa"], lookasides=[DOUBLED], operators=[FAST], memory_budget=0.5
    )
    assert recipe.all_transforms() == (Pack(),)
    assert recipe.all_executors() == (FAST, "sdpa", "torch")
    assert recipe.all_lookasides() == (DOUBLED,)
    assert recipe.composition.settings == {"memory_budget": 0.5}


def test_options_find_the_recipe_that_has_them() -> None:
    both = find_recipe([Sharing, Alone], {"height": 7, "sharing.width": 5})
    assert both.options == {"alone.width": 2, "height": 7, "sharing.width": 5}
    assert find_recipe([Alone, Sharing], both.options).options == both.options
    with pytest.raises(BadOption, match="several recipes have the option width") as caught:
        find_recipe([Sharing, Alone], {"width": 5})
    assert caught.value.fix == "name the recipe: sharing.width or alone.width"
    with pytest.raises(BadOption, match="the option height of alone is given twice"):
        find_recipe([Sharing, Alone], {"height": 7, "alone.height": 8})
    with pytest.raises(UnknownName, match="no option 'heigth'") as unknown:
        find_recipe([Sharing, Alone], {"heigth": 5})
    assert "did you mean alone.height" in unknown.value.fix


def test_executors_of_a_plugin_precede_executors_of_recipes() -> None:
    first, second = OperatorExecutor("zeta"), OperatorExecutor("zweit")
    recipe = find_recipe("default", {}) + Plugin("x", executors=(first, second))
    assert recipe.all_executors() == (first, second, "sdpa", "packed-linear", "packed-attention", "inductor", "torch")
    assert (Functionalize() + Plugin("z", transforms=(Pack(),)) + Recipe()).all_transforms() == (
        Functionalize(),
        Pack(),
    )
    assert order_transforms([DropDeadCode(), Pack()]) == (Pack(), DropDeadCode())


@pytest.mark.parametrize(
    ("names", "sample"),
    [
        (("default", "hf-generate"), "llama"),
        (("hf-generate", "hf-llama3"), "llama3"),
        (("default", "reduce-overhead"), "llama3"),
        (("max-memory-saving", "hf-t5"), "t5"),
    ],
)
def test_the_sample_comes_from_the_recipe_for_the_fewest_models(names: tuple[str, ...], sample: str) -> None:
    assert find_recipe(names, {}).shared_sample == sample
    assert find_recipe(names[::-1], {}).shared_sample == sample


def test_recipes_that_list_executors_otherwise_are_refused() -> None:
    class Forwards(Recipe):
        """A recipe with one order of executors."""

        executors = ("sdpa", "inductor", "torch")

    class Backwards(Recipe):
        """A recipe with the opposite order of executors."""

        executors = ("inductor", "sdpa", "torch")

    with pytest.raises(RecipeConflict, match="must each come before the other") as caught:
        _ = (Forwards() + Backwards()).all_executors()
    assert "forwards lists sdpa before inductor" in caught.value.what
    assert "backwards lists inductor before sdpa" in caught.value.what
    assert Forwards().with_(executors=["triton"]).all_executors() == ("triton", "sdpa", "inductor", "torch")


def test_plug_ins_that_differ_in_functions_alone_are_refused() -> None:
    """Only the addresses of the functions could decide the order of such plug-ins."""

    def lookaside(factor: float) -> Lookaside:
        def scaled(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) * factor

        return Lookaside(torch.nn.functional.relu, scaled)

    first, second = (Plugin("both", lookasides=(lookaside(factor),)) for factor in (1.0, 2.0))
    assert (first + first).title == "both"
    with pytest.raises(RecipeConflict, match="two plug-ins have the name both"):
        first + second
