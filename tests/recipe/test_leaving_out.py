"""Parts that are left out of a sum: the order does not matter, the parts add up, and impossible parts are refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.compilation.compiler import CLEANUP_TRANSFORMS
from thunder_core.foundation.errors import BadOption, RecipeConflict, ThunderError, UnknownName
from thunder_core.passes.recipe import Plugin, Recipe
from thunder_core.passes.recipe.composition import reasons
from thunder_core.passes.transforms.functionalize import Functionalize
from thunder_core.tracing.extension.transform import Transform
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.pipeline.request.recipes import find_recipe, recipe_class

Default = recipe_class("default")


class Careful(Recipe):
    """A recipe that leaves an executor out of a module."""

    def setup_config(self) -> Mapping[str, object]:
        """The settings of `jit`."""
        return {"without": ["inductor:layers.1"]}


@dataclass(frozen=True)
class Wanting(Transform):
    """A transform that needs another transform."""

    needs: ClassVar[tuple[str, ...]] = ("functionalize",)

    def __call__(self, trace: Trace) -> Trace:
        return trace


def net() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU(), torch.nn.Linear(3, 2))


def steps(recipe: Recipe) -> list[str]:
    return [name for _, name, _ in reasons(recipe.composition, CLEANUP_TRANSFORMS)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_left_out_parts_add_up_in_every_order(order: tuple[int, ...]) -> None:
    parts = (
        Default,
        Careful,
        Functionalize(),
        Plugin("less", settings={"without": ("cse", "sdpa", "inductor:layers.2")}),
    )
    recipe = find_recipe([parts[place] for place in order], {})
    recipe.composition.require_consistent(CLEANUP_TRANSFORMS)
    assert recipe.composition.without == ("cse", "inductor:layers.1", "inductor:layers.2", "sdpa")
    assert steps(recipe) == ["Functionalize", "DropDeadCode", "packed-linear", "packed-attention", "inductor", "torch"]
    assert recipe.all_executors() == ("packed-linear", "packed-attention", "inductor", "torch")


def test_each_left_out_name_is_a_separate_part() -> None:
    both = Default().with_(without=["sdpa", "cse"])
    assert both.name == "default + without=cse + without=sdpa"
    assert both.name == Default().with_(without=["cse"]).with_(without=["sdpa", "cse"]).name
    assert Default().with_(without=["functionalize"]).with_(transforms=[Functionalize()]).all_transforms() == ()


def test_compile_leaves_out_parts_in_addition_to_the_recipe() -> None:
    model, x = net(), torch.ones(1, 3)
    own = Plugin("own", settings={"without": ("inductor:1",)})
    compiled = thunder.compile(model, ["default", own], without=["sdpa", "cse"])
    torch.testing.assert_close(compiled(x), model(x))
    compiler = thunder.compiler.specializations_of(compiled).compiler
    assert compiler.options.without == ("cse", "inductor:1", "sdpa")
    assert [executor.name for executor in compiler.executors] == [
        "packed-linear",
        "packed-attention",
        "inductor",
        "torch",
    ]
    assert [type(transform).__name__ for transform in compiler.transforms] == ["DropDeadCode"]
    trace = thunder.last_traces(compiled)[-1]
    assert {bsym.executor for bsym in trace.bound_symbols if bsym.module == "1"} == {"torch"}


def test_an_executor_that_is_an_object_is_left_out_by_its_name() -> None:
    mine = OperatorExecutor("mine")
    recipe = Default().with_(executors=[mine], without=["mine"])
    recipe.composition.require_consistent(CLEANUP_TRANSFORMS)
    assert mine not in recipe.all_executors()


Call = Callable[..., Any]
REFUSED: Mapping[str, tuple[type[ThunderError], str, str]] = {
    "induktor": (UnknownName, "no executor or transform of the recipe is named 'induktor'", "did you mean inductor"),
    "triton:0": (UnknownName, "named 'triton'", "known: DropDeadCode, ShareCommonExpressions, cse, dce, inductor"),
    "torch": (BadOption, "torch runs the operations that no other executor claims", "another executor"),
    "torch:0": (BadOption, "torch runs the operations that no other executor claims", "another executor"),
    "cse:0": (BadOption, "cse is a transform", "write --without cse"),
    "inductor:4": (UnknownName, "no module of this Sequential matches '4'", "its modules: 0, 1, 2"),
    "inductor:": (BadOption, "has no name", "write the name of an executor"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_parts_that_cannot_be_left_out_are_refused_by_compile_and_jit_alike(text: str) -> None:
    kind, what, fix = REFUSED[text]
    calls: tuple[Call, ...] = (
        lambda: thunder.compile(net(), "default", without=(text,)),
        lambda: thunder.jit(net(), executors=["sdpa", "inductor", "torch"], without=(text,)),
    )
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert what in caught.value.what
        assert fix in caught.value.fix


def test_leaving_out_a_part_that_another_needs_is_refused() -> None:
    recipe = Default().with_(transforms=[Wanting(), Functionalize()])
    recipe.composition.require_consistent()
    with pytest.raises(RecipeConflict, match="Wanting needs functionalize, but --without leaves it out"):
        recipe.with_(without=["Functionalize"]).composition.require_consistent()
    recipe.with_(without=["Functionalize", "Wanting"]).composition.require_consistent()
    needing = Plugin("needing", needs=("inductor",))
    with pytest.raises(RecipeConflict, match="needing needs inductor, but --without leaves it out"):
        (Default() + needing).with_(without=["inductor"]).composition.require_consistent()
    (Default() + needing).with_(without=["inductor:0"]).composition.require_consistent()
    with pytest.raises(RecipeConflict, match="Wanting needs functionalize"):
        thunder.jit(net(), transforms=[Wanting(), Functionalize()], without=["functionalize"])
