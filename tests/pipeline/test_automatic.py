"""`--recipe auto`: the recipe that is chosen for a model and a machine, and the printed reasons."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.pipeline.conftest import quick
from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.pipeline import plan
from thunder_core.workflow.pipeline.request.automatic import asks_for_choice, choose_recipe, with_choice
from thunder_core.workflow.pipeline.request.recipes import find_recipe


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("llama", "hf-llama"), ("bert", "hf-bert"), ("t5", "hf-t5"), ("vit", "hf-vit"), ("mixtral", "hf-moe")],
)
def test_a_family_has_its_recipe(model_type: str, name: str) -> None:
    choice = choose_recipe(model_type, torch.device("cpu"))
    assert choice.names == (name,)
    assert choice.reasons[0] == f"{name} is made for {model_type}"


def test_recipes_that_the_machine_lacks_are_left_out_with_the_reason() -> None:
    choice = choose_recipe("llama", torch.device("cpu"))
    assert any(reason.startswith("hf-llama3-hopper is left out: ") for reason in choice.reasons)
    assert choose_recipe("llama", target="sm_90").names == ("hf-llama3-hopper",)
    assert choose_recipe("llama", target="sm_80").names == ("hf-llama",)


def test_families_without_a_recipe_get_the_general_one() -> None:
    assert choose_recipe("mamba").names == ("hf-transformers",)
    assert choose_recipe(None).names == ("default",)
    assert choose_recipe("llama", torch.device("cpu"), generates=True).names == ("hf-llama", "hf-generate")


def test_automatic_choice_combines_with_named_recipes() -> None:
    choice = choose_recipe("bert")
    assert asks_for_choice(["auto", "max-memory-saving"])
    assert asks_for_choice("auto+max-memory-saving")
    assert not asks_for_choice(["default"])
    assert with_choice("max-memory-saving + auto", choice) == ("max-memory-saving", "hf-bert")


def test_the_plan_shows_the_chosen_recipe_with_the_reason(tmp_path: Path) -> None:
    planned = plan(quick(tmp_path / "out", "auto", sample="bert"))
    assert planned.prepared.recipe.name == "hf-bert"
    assert ("choice", "hf-bert is made for bert") in planned.rows()
    assert planned.as_data()["choice"] == ["hf-bert is made for bert"]


def test_without_a_model_nothing_is_chosen() -> None:
    with pytest.raises(BadOption, match="there is no model"):
        find_recipe("auto", {})


@pytest.mark.usefixtures("without_kernels")
def test_a_module_is_compiled_by_the_chosen_recipe() -> None:
    model, x = torch.nn.Linear(2, 3), torch.ones(1, 2)
    assert torch.equal(thunder.compile(model, "auto")(x), model(x))
