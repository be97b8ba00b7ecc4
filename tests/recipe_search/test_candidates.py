"""The candidates for models, tasks and machines, and the reasons why others do not apply."""

from __future__ import annotations

import pytest
import torch

from thunder_core.workflow.recipe_search import candidates
from thunder_core.workflow.recipe_search.candidates import SearchContext, list_candidates
from thunder_core.workflow.report.search import SearchBounds

CPU = torch.device("cpu")


def names(context: SearchContext) -> list[str]:
    return [candidate.name for candidate in list_candidates(context)[0]]


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setattr(candidates.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def test_candidates_for_calls_of_a_llama():
    found, excluded = list_candidates(SearchContext("llama", CPU, "float32"))
    assert found[0].is_eager
    assert {
        "hf-llama",
        "hf-llama without fusion",
        "hf-llama + int8-weight-only",
        "hf-llama + freeze",
        "hf-llama in bfloat16",
        "hf-llama without packed-linear",
        "hf-llama with 1 thread",
    } <= {result.name for result in found}
    reasons = {one.candidate.name: one.reason for one in excluded}
    assert reasons["hf-bert"].startswith("it is for bert")
    assert "process group" in reasons["hf-llama + fsdp"]
    assert "backward" in reasons["hf-llama + max-memory-saving"]
    assert all(result.quantizes == (result.rank == 4) for result in found)


def test_generation_has_the_static_cache_and_the_dynamic_one():
    found = names(SearchContext("llama", CPU, "float32", generates=True))
    assert {"hf-llama", "hf-llama + hf-generate", "hf-llama + hf-generate + int8-weight-only"} <= {*found}


def test_training_has_no_quantized_recipes_and_no_dtypes():
    found = names(SearchContext("llama", CPU, "float32", train=True))
    assert "hf-llama + max-memory-saving" in found
    assert not [name for name in found if "int" in name or "bf16" in name or "bfloat16" in name]


@pytest.mark.parametrize(("model_type", "base"), [(None, "default"), ("vit", "hf-vit"), ("resnet", "hf-transformers")])
def test_the_base_fits_the_model(model_type, base):
    assert names(SearchContext(model_type, CPU, "float32"))[1] == base


def test_options_of_the_user_are_not_varied():
    fixed = SearchContext("llama", CPU, "float32", may_change_dtype=False, may_change_threads=False)
    assert not [name for name in names(fixed) if "thread" in name or "float16" in name]
    assert not [name for name in names(SearchContext("llama", CPU, "bfloat16")) if " in " in name]


def test_bounds_narrow_those_of_quantized_recipes():
    found, _ = list_candidates(SearchContext("llama", CPU, "float32", bounds=SearchBounds(max_kl=0.001, min_top1=0.9)))
    quantized = next(result for result in found if result.name == "hf-llama + int8-weight-only")
    assert dict(quantized.options) == {"int8-weight-only.kl": "0.001", "int8-weight-only.top1": "0.9"}
    exact, _ = list_candidates(SearchContext("llama", CPU, "float32", bounds=SearchBounds(max_kl=0.0)))
    assert not next(one for one in exact if one.quantizes).options


def test_frozen_weights_are_no_candidate_for_training_or_a_gpu():
    for context in (
        SearchContext("llama", CPU, "float32", train=True),
        SearchContext("llama", torch.device("cuda"), "float32"),
    ):
        found, excluded = list_candidates(context)
        assert not any("freeze" in candidate.name for candidate in found)
        assert any("freeze" in item.candidate.name for item in excluded)
