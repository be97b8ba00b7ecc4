"""Thunder's own recipes: each is found by name, uses existing parts, accepts its families and refuses others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import thunder_core as thunder
from tests.families import FAMILIES, assert_same, inputs_for, sample
from tests.uncompiled import leave_inductor_out
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadRecipe, BadSymbolicArgument, RecipeMismatch
from thunder_core.passes.recipe import Recipe, order_transforms, recipes_for
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline.request.recipes import find_recipe

NAMES = (
    *("default", "hf-bert", "hf-generate", "hf-llama", "hf-llama3", "hf-llama3-hopper", "hf-moe", "hf-t5", "hf-vit"),
    *("hf-transformers", "max-memory-saving", "reduce-overhead"),
)

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
# DistilBERT has other names for the same numbers.
TINY_OF = {"distilbert": {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 1, "n_heads": 4}}


def recipe(name: str) -> Recipe:
    return find_recipe(name, {})


def tiny(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(family, **TINY_OF.get(family, TINY))).eval()


def test_documented_recipes_exist() -> None:
    assert set(NAMES) <= set(plugins.names("recipes"))


@pytest.mark.parametrize("name", plugins.names("recipes"))
def test_file_and_class_have_one_name(name: str) -> None:
    assert recipe(name).name == name


@pytest.mark.parametrize("name", plugins.names("recipes"))
def test_names_in_a_recipe_exist(name: str) -> None:
    this = recipe(name)
    assert set(this.setup_executors()) <= set(plugins.names("executors"))
    this.composition.require_consistent()
    assert this.setup_executors()[-1] == "torch"
    assert this.sample in SAMPLES
    assert set(this.families) <= set(CONFIG_MAPPING)
    assert order_transforms(this.setup_transforms()) is not None
    assert this.summary().endswith(".")
    assert this.compiler == "jit"


@pytest.mark.parametrize("name", plugins.names("recipes"))
def test_recipe_accepts_its_sample(name: str) -> None:
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
def test_a_llama_recipe_refuses_bert_and_names_the_recipe_that_accepts_it(name: str) -> None:
    recipe(name).validate(tiny("llama"))
    with pytest.raises(RecipeMismatch, match=f"{name} is for .*llama.*; this model is bert") as caught:
        recipe(name).validate(tiny("bert"))
    assert "hf-bert or hf-transformers" in caught.value.fix


def test_hf_bert_refuses_llama() -> None:
    with pytest.raises(RecipeMismatch, match="this model is llama"):
        recipe("hf-bert").validate(tiny("llama"))


@pytest.mark.parametrize("name", ["hf-bert", "hf-llama"])
def test_each_family_of_a_recipe_equals_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's kernels run for families that `tests/test_families.py` does not compile with Inductor."""
    assert recipe(name).families
    for family in recipe(name).families:
        model = tiny(family)
        ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad(), monkeypatch.context() as patch:
            if family in FAMILIES:
                leave_inductor_out(patch)
            compiled = thunder.compile(model, recipe=name)
            assert_same(compiled(**inputs), model(**inputs))


def test_hopper_recipe_degrades_without_a_hopper_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lacks = recipe("hf-llama3-hopper").skipped_parts()
    assert [lack.part for lack in lacks] == list(type(recipe("hf-llama3-hopper")).parts)
    for lack in lacks:
        assert "no CUDA GPU" in lack.reason
        assert "9.0" in lack.fix


def test_hopper_is_whole_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert recipe("hf-llama3-hopper").skipped_parts() == ()


def test_recipes_are_found_by_family() -> None:
    assert recipes_for("llama") == ("hf-llama", "hf-llama3", "hf-llama3-hopper")
    assert recipes_for("bert") == ("hf-bert",)


def test_dimensions_are_spelled_out_for_the_inputs_of_all_models() -> None:
    named = {
        argument.name: argument
        for argument in recipe("hf-llama").symbolic_arguments({"seq": (2, 8), "input_ids.size(0)": None})
    }
    assert (named["input_ids.size(-1)"].lower, named["input_ids.size(-1)"].upper) == (2, 8)
    assert not named["attention_mask.size(-1)"].required
    assert named["input_ids.size(0)"].required
    assert recipe("default").symbolic_arguments() == ()


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_dimensions_may_be_named_where_a_model_is_compiled(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program serves all lengths, and dimensions that the model or the call does not have are no error.

    Models of one stack are compiled by Inductor for all sizes in `tests/symbolic/models/test_inductor.py`.
    """
    if family != "t5":
        leave_inductor_out(monkeypatch)
    loaded = sample(family)
    fast = thunder.compile(loaded.model, "hf-transformers", symbolic={"seq": (2, 40), "batch": (2, 4)})
    with torch.no_grad():
        for batch, length in ((2, 12), (3, 9)):
            inputs = inputs_for(loaded, batch=batch, seq=length)
            assert_same(fast(**inputs), loaded.model(**inputs))
    assert thunder.cache_misses(fast) == 1, thunder.recompile_reasons(fast)


def test_a_dimension_that_a_model_has_not_is_refused() -> None:
    with pytest.raises(BadSymbolicArgument, match="has no input for seq of the recipe default"):
        thunder.compile(torch.nn.Linear(2, 2), symbolic=["seq"])
    with pytest.raises(BadSymbolicArgument, match="no argument is named 'length'"):
        thunder.compile(torch.nn.Linear(2, 2), symbolic=["length"])


class Dynamic(Recipe):
    """A recipe that sets symbolic sizes."""

    dimensions: ClassVar[Mapping[str, tuple[str, ...]]] = {"rows": ("input.size(0)",)}
    symbolic: ClassVar[tuple[str, ...]] = ("rows",)


def test_a_recipe_sets_the_default_symbolic_dimensions() -> None:
    fast = thunder.compile(torch.nn.Linear(2, 2), Dynamic)
    for rows in (3, 1, 9):
        fast(torch.ones(rows, 2))
    assert thunder.cache_misses(fast) == 1
    constant = thunder.compile(torch.nn.Linear(2, 2), Dynamic, symbolic=())
    for rows in (3, 9):
        constant(torch.ones(rows, 2))
    assert thunder.cache_misses(constant) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dimensions", ("seq",)),
        ("dimensions", {"seq": "input_ids.size(1)"}),
        ("dimensions", {"seq": ("input_ids.shape[1]",)}),
        ("symbolic", ("x.shape",)),
        ("symbolic", {"x.size(0)": (8, 1)}),
    ],
)
def test_impossible_dimensions_are_refused_when_the_recipe_is_created(name: str, value: object) -> None:
    with pytest.raises(BadRecipe):
        type("Wrong", (Recipe,), {name: value})
