"""Thunder's own recipes: each can be found, names what exists, takes its families and refuses others."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import thunder_core as thunder
from tests.families import assert_same
from thunder_core import plugins
from thunder_core.errors import RecipeMismatch
from thunder_core.models.sample_models import SAMPLES
from thunder_core.pipeline.recipes import find_recipe
from thunder_core.recipe import Recipe, order_transforms, recipes_for

NAMES = ("default", "hf-bert", "hf-llama", "hf-llama3", "hf-llama3-hopper", "hf-transformers")

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
# DistilBERT has names of its own for the same numbers.
TINY_OF = {"distilbert": {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 1, "n_heads": 4}}


def recipe(name: str) -> Recipe:
    return find_recipe(name, {})


def tiny(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(family, **TINY_OF.get(family, TINY))).eval()


def test_these_are_the_recipes() -> None:
    assert set(NAMES) <= set(plugins.names("recipes"))


@pytest.mark.parametrize("name", plugins.names("recipes"))
def test_file_and_class_have_one_name(name: str) -> None:
    assert recipe(name).name == name


@pytest.mark.parametrize("name", plugins.names("recipes"))
def test_what_it_names_exists(name: str) -> None:
    this = recipe(name)
    assert set(this.setup_executors()) <= set(plugins.names("executors"))
    assert this.setup_executors()[-1] == "torch"
    assert this.sample in SAMPLES
    assert set(this.families) <= set(CONFIG_MAPPING)
    assert order_transforms(this.setup_transforms()) is not None
    assert this.summary().endswith(".")
    assert this.compiler == "jit"


@pytest.mark.parametrize("name", plugins.names("recipes"))
def test_the_sample_is_one_that_it_takes(name: str) -> None:
    this = recipe(name)
    family = CONFIG_MAPPING[this.families[0]] if this.families else None
    architecture = SAMPLES[this.sample].architecture
    assert family is None or family.__name__.removesuffix("Config").lower() in architecture.lower()


def test_default_takes_every_module() -> None:
    recipe("default").validate(torch.nn.Linear(1, 1))
    recipe("default").validate(tiny("bert"))


def test_hf_transformers_takes_every_model_of_the_library() -> None:
    recipe("hf-transformers").validate(tiny("bert"))
    recipe("hf-transformers").validate(tiny("llama"))
    with pytest.raises(RecipeMismatch, match="Linear"):
        recipe("hf-transformers").validate(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("name", ["hf-llama", "hf-llama3", "hf-llama3-hopper"])
def test_a_llama_recipe_refuses_bert_and_says_what_takes_it(name: str) -> None:
    recipe(name).validate(tiny("llama"))
    with pytest.raises(RecipeMismatch, match=f"{name} is for .*llama.*; this model is bert") as caught:
        recipe(name).validate(tiny("bert"))
    assert "hf-bert or hf-transformers" in caught.value.fix


def test_hf_bert_refuses_llama() -> None:
    with pytest.raises(RecipeMismatch, match="this model is llama"):
        recipe("hf-bert").validate(tiny("llama"))


@pytest.mark.parametrize("name", ["hf-bert", "hf-llama"])
def test_each_family_of_a_recipe_compiles_to_what_eager_gives(name: str) -> None:
    assert recipe(name).families
    for family in recipe(name).families:
        model = tiny(family)
        ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad():
            compiled = thunder.compile(model, recipe=name)
            assert_same(compiled(**inputs), model(**inputs))


def test_hopper_degrades_where_there_is_no_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lacks = recipe("hf-llama3-hopper").degraded()
    assert [lack.part for lack in lacks] == list(type(recipe("hf-llama3-hopper")).parts)
    for lack in lacks:
        assert "no CUDA GPU" in lack.reason
        assert "9.0" in lack.fix


def test_hopper_is_whole_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert recipe("hf-llama3-hopper").degraded() == ()


def test_recipes_know_whom_they_are_for() -> None:
    assert recipes_for("llama") == ("hf-llama", "hf-llama3", "hf-llama3-hopper")
    assert recipes_for("bert") == ("hf-bert",)
