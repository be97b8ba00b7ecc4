"""The KV cache has the name of the installed transformers, in arguments and in outputs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import thunder_core as thunder
from tests.families import WITH_CACHE, assert_same, inputs_for, sample
from thunder_core.foundation.transformers_versions import (
    CACHE,
    CACHE_NAMES,
    EARLIER_CACHE,
    cache_argument,
    returned_cache,
)


class TakesNewName:
    def forward(self, input_ids, cache=None): ...


class TakesOldName:
    def forward(self, input_ids, past_key_values=None): ...


class TakesBoth:
    def forward(self, input_ids, past_key_values=None, cache=False): ...


class TakesKeywords:
    def forward(self, input_ids, **kwargs): ...


NAMES = {TakesNewName: CACHE, TakesOldName: EARLIER_CACHE, TakesBoth: EARLIER_CACHE, TakesKeywords: EARLIER_CACHE}


@pytest.mark.parametrize("kind", NAMES)
def test_name_of_the_argument_is_read_from_forward(kind):
    assert cache_argument(kind()) == NAMES[kind]


@pytest.mark.parametrize("name", WITH_CACHE)
def test_models_of_the_library_take_a_cache_of_that_name_without_a_warning(name):
    loaded = sample(name)
    output = loaded.model(**inputs_for(loaded), use_cache=True)
    cache = returned_cache(output)
    assert cache.get_seq_length() > 0
    loaded.model(inputs_for(loaded)["input_ids"][:, :1], **{cache_argument(loaded.model): cache})


def test_outputs_of_each_name_and_of_none():
    assert returned_cache(SimpleNamespace(past_key_values=1)) == 1
    assert returned_cache(SimpleNamespace(cache=2, past_key_values=1)) == 2
    assert returned_cache(SimpleNamespace(cache=None)) is None
    assert returned_cache((torch.ones(1),)) is None


@pytest.mark.filterwarnings("default::FutureWarning")
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_cache_of_an_earlier_name_gives_eagers_results(name):
    """Transformers warns of the earlier name. A compiled model also warns at its first call, as in eager PyTorch."""
    loaded = sample(name)
    compiled = thunder.compile(loaded.model)
    tokens = inputs_for(loaded)["input_ids"]
    with torch.no_grad():
        ours, eager = (model(tokens[:, :8], use_cache=True) for model in (compiled, loaded.model))
        for step in (8, 9, 10):
            token = tokens[:, step : step + 1]
            ours = compiled(token, past_key_values=returned_cache(ours))
            eager = loaded.model(token, past_key_values=returned_cache(eager))
            assert_same(ours, eager)


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_sizes_of_a_cache_of_each_name_are_symbolic_in_calls_with_a_cache(name):
    from thunder_core.passes.recipe.dimensions import DIMENSIONS
    from thunder_recipes.hf_transformers import HFTransformers

    assert f"seq with {name}" in HFTransformers.symbolic
    assert any(dimension.startswith(f"{name}.layers") for dimension in DIMENSIONS["batch"])
