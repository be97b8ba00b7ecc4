"""Whole, unmodified models of transformers, compiled and compared with eager PyTorch."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from tests.families import FAMILIES, WITH_CACHE, assert_same, first_claimed_lines, gradients, inputs_for, sample
from thunder_core.backend.claiming.claim import claims_by_executor
from thunder_core.foundation.transformers_versions import cache_argument, returned_cache
from thunder_core.tracing.library.objects import CHECK_NAMES
from thunder_executors.inductor import EXECUTOR as INDUCTOR


@pytest.mark.sample(14)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_inference_equals_eager(name: str, dtype: str) -> None:
    """The inputs have attention masks; some were traced, and others have the same shapes."""
    loaded = sample(name, dtype)
    compiled = thunder.jit(loaded.model)
    with torch.no_grad():
        for seed in (1, 2):
            inputs = inputs_for(loaded, seed=seed)
            assert_same(compiled(**inputs), loaded.model(**inputs))
    assert thunder.cache_misses(compiled) == 1
    assert thunder.cache_hits(compiled) == 1


@pytest.mark.sample(6)
@pytest.mark.skipif(INDUCTOR.missing() is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", FAMILIES)
def test_fused_inference_equals_eager(name: str) -> None:
    """Nearly every line of every family is in regions, except for lines that read the value of a mask."""
    loaded = sample(name)
    compiled = thunder.jit(loaded.model, executors=("inductor", "torch"))
    with torch.no_grad():
        for seed in (1, 2):
            inputs = inputs_for(loaded, seed=seed)
            assert_same(compiled(**inputs), loaded.model(**inputs))
    claims = claims_by_executor(thunder.last_traces(compiled)[-1])
    asking = sum(line.symbol.name in (*CHECK_NAMES, "torch.Tensor.__bool__") for line in first_claimed_lines(compiled))
    assert claims["inductor"] > 20 * (claims.get("torch", 0) - asking)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FAMILIES)
def test_labels_give_eagers_loss(name: str) -> None:
    loaded = sample(name)
    compiled = thunder.jit(loaded.model)
    with torch.no_grad():
        for seed in (1, 2):
            inputs = inputs_for(loaded, seed=seed, labels=True)
            ours, eager = compiled(**inputs), loaded.model(**inputs)
            assert ours.loss.ndim == 0
            assert_same(ours, eager)
    assert thunder.cache_misses(compiled) == (2 if name == "vit" else 1), "ViT notes the kind of problem in its config"


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FAMILIES)
def test_tuples_are_returned_on_request(name: str) -> None:
    loaded = sample(name)
    compiled = thunder.jit(loaded.model)
    inputs = inputs_for(loaded)
    with torch.no_grad():
        assert_same(compiled(**inputs, return_dict=False), loaded.model(**inputs, return_dict=False))


@pytest.mark.sample(6)
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", WITH_CACHE)
def test_caches_come_out_and_go_in(name: str, use_cache: bool) -> None:
    """A prompt and one more token, with a separate cache for each model."""
    loaded = sample(name)
    compiled = thunder.jit(loaded.model)
    name_of_cache = cache_argument(loaded.model)
    tokens = inputs_for(loaded)["input_ids"]
    with torch.no_grad():
        ours, eager = (model(tokens[:, :8], use_cache=use_cache) for model in (compiled, loaded.model))
        assert_same(ours, eager)
        if not use_cache:
            assert returned_cache(ours) is None
            return
        for step in (8, 9):
            token = tokens[:, step : step + 1]
            ours = compiled(token, use_cache=True, **{name_of_cache: returned_cache(ours)})
            eager = loaded.model(token, use_cache=True, **{name_of_cache: returned_cache(eager)})
            assert_same(ours, eager)
            assert returned_cache(ours).get_seq_length() == step + 1


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_generate_gives_eagers_tokens(name: str) -> None:
    loaded = sample(name)
    compiled = thunder.jit(loaded.model)
    tokens = inputs_for(loaded)["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(tokens)}
    assert torch.equal(compiled.generate(tokens, **options), loaded.model.generate(tokens, **options))
    assert thunder.cache_misses(compiled) > 0


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_equal_eager(name: str) -> None:
    """With autograd on, PyTorch records the operations of the compiled program as it does in eager."""
    loaded = sample(name)
    compiled = thunder.jit(loaded.model)
    inputs = inputs_for(loaded, labels=True)
    assert_same(*(gradients(model, loaded.model, inputs) for model in (compiled, loaded.model)))
