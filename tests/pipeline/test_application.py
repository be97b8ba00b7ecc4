"""`compile`: compile a model in memory by a recipe's name, class or instance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder_core
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.foundation.errors import (
    BadRecipe,
    DegradedWarning,
    RecipeConflict,
    RecipeMismatch,
    UnknownName,
    WrongInputs,
)
from thunder_core.passes.recipe import Lookaside, Package, Plugin, Recipe
from thunder_core.tracing.extension.transform import Transform
from thunder_recipes.hf_llama import HFLlama


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x).relu()


def test_the_result_is_eagers_and_the_state_is_shared():
    model, x = Net(), torch.randn(2, 4)
    compiled = thunder_core.compile(model)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    assert compiled.inner.weight is model.inner.weight
    assert thunder_core.cache_misses(compiled) == 1


@pytest.mark.parametrize("recipe", ["hf-llama", HFLlama, HFLlama()], ids=["name", "class", "instance"])
def test_a_recipe_checks_whether_it_accepts_the_model(recipe):
    with pytest.raises(RecipeMismatch):
        thunder_core.compile(Net(), recipe)


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(UnknownName) as caught:
        thunder_core.compile(Net(), "defualt")
    assert "did you mean default" in caught.value.fix


def by_hand():
    """An executor that exists only in this process. Its relu is a sine, so that its use is visible in the result."""
    own = OperatorExecutor("by_hand")

    @own.implements(torch.Tensor.relu)
    def relu(tensor):
        return torch.sin(tensor)

    return own


def doubled_relu(tensor):
    return torch.relu(tensor) * 2


def test_lookasides_of_plug_ins_are_applied():
    model, x = Net(), torch.randn(2, 4)
    recipe = Recipe() + Plugin("doubled", lookasides=(Lookaside(torch.Tensor.relu, doubled_relu),))
    assert torch.equal(thunder_core.compile(model, recipe)(x), model(x) * 2)
    with pytest.raises(RecipeConflict, match=r"two lookasides replace .*relu"):
        thunder_core.compile(model, recipe + Lookaside(torch.Tensor.relu, torch.neg))


def declaring(own):
    return type("Declaring", (Recipe,), {"executors": (own, "torch")})


@pytest.mark.parametrize(
    "recipe",
    [
        lambda own: Recipe() + own,
        lambda own: Recipe() + Plugin("mine", executors=(own, "torch")),
        lambda own: declaring(own),
        lambda own: declaring(own)() + Plugin("mine", executors=(own, "by_hand")),
    ],
    ids=["sum", "plug-in", "class", "twice"],
)
def test_an_executor_may_be_an_object(recipe):
    model, x = Net(), torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(thunder_core.compile(model, recipe(by_hand()))(x), model.inner(x).sin())


@pytest.mark.parametrize("recipe", [[], ["default", 3], None, 3, Net, Plugin("mine"), by_hand()])
def test_objects_that_are_no_recipes_are_refused(recipe):
    with pytest.raises(BadRecipe, match="is not a recipe") as caught:
        thunder_core.compile(Net(), recipe)
    assert "Default() + plugin" in caught.value.fix


def test_objects_that_are_no_executors_are_refused():
    with pytest.raises(WrongInputs, match="is a single executor, not a list"):
        thunder_core.jit(Net(), executors="torch")
    with pytest.raises(WrongInputs, match="is not an executor"):
        thunder_core.jit(Net(), executors=[3])


def test_a_recipe_that_lacks_a_part_warns():
    class Wanting(Recipe):
        requirements = (Package("nothing_of_the_kind"), Package("nor_of_that"))
        parts = ("speed", "comfort")

    with pytest.warns(DegradedWarning) as caught:
        compiled = thunder_core.compile(Net(), Wanting)
    assert [str(warning.message).partition(" (")[0] for warning in caught] == [
        "the recipe wanting skips speed, comfort: nothing_of_the_kind is not installed",
        "the recipe wanting skips speed, comfort: nor_of_that is not installed",
    ]
    assert caught[0].filename == __file__
    assert compiled(torch.ones(1, 4)).shape == (1, 4)


def test_a_transform_may_prepare_the_model():
    class Twice(Transform):
        def prepare(self, model):
            twin = Net()
            with torch.no_grad():
                twin.inner.weight.copy_(2 * model.inner.weight)
                twin.inner.bias.copy_(2 * model.inner.bias)
            return twin

        def __call__(self, trace):
            return trace

    from thunder_recipes.default import Default

    class Doubled(Default):
        def setup_transforms(self):
            return (Twice(),)

    model, x = Net(), torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(thunder_core.compile(model, Doubled)(x), 2 * model(x))


class Strict(torch.nn.Module):
    """A module whose `__getattr__` raises KeyError for a name that it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.table = {"scale": 2.0}
        self.linear = torch.nn.Linear(2, 2)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {})
        return modules[name] if name in modules else self.__dict__["table"][name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x) * self.scale
        return result


@pytest.mark.parametrize("recipe", ["default", "auto"])
def test_module_whose_getattr_raises_other_errors_is_compiled(recipe: str) -> None:
    model, x = Strict(), torch.ones(2, 2)
    with torch.no_grad():
        torch.testing.assert_close(thunder_core.compile(model, recipe=recipe)(x), model(x))
    with pytest.raises(RecipeMismatch, match="this model is of class Strict"):
        thunder_core.compile(model, recipe="hf-transformers")
