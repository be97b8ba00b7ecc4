"""Inputs that continue a text: random caches, and the tensors in them."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicCache

from thunder_core.foundation.errors import BadOption, SequenceTooLong
from thunder_core.foundation.transformers_versions import cache_argument
from thunder_core.workflow.models.inputs.input_tensors import map_tensors, numbers_in, tensors_in, with_own_caches
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES

DECODERS = ("llama", "mistral", "gemma2", "gpt2")


def sample(name: str) -> LoadedModel:
    return load_model(ModelRequest(sample=SAMPLES[name]))


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("length", [1, 15, 16, 40])
def test_a_drawn_cache_is_shaped_as_one_that_the_model_has_filled(name: str, length: int) -> None:
    loaded = sample(name)
    drawn = example_inputs(loaded, batch=2, seq=1, seed=3, cache=length)[cache_argument(loaded.model)]
    with torch.no_grad():
        own = DynamicCache(config=loaded.config)
        for part in (length - 1, 1):  # the last step is of one token
            if part:
                loaded.model(input_ids=torch.full((2, part), 7), **{cache_argument(loaded.model): own})
    pairs = zip(tensors_in({"cache": drawn}), tensors_in({"cache": own}), strict=True)
    assert [(a, x.shape, x.stride()) for (a, x), _ in pairs] == [
        (a, x.shape, x.stride()) for a, x in tensors_in({"cache": own})
    ]
    assert dict(numbers_in({"cache": drawn})) == dict(numbers_in({"cache": own}))


def test_a_mask_is_of_the_cache_and_the_tokens_behind_it() -> None:
    inputs = example_inputs(sample("llama"), batch=3, seq=2, seed=0, cache=20)
    mask = inputs["attention_mask"]
    assert mask.shape == (3, 22)
    assert mask[0].all() and mask[:, -2:].all()
    assert not mask.all()  # texts of one batch are of different lengths
    again = example_inputs(sample("llama"), batch=3, seq=2, seed=0, cache=20)
    assert all(
        torch.equal(left, right) for (_, left), (_, right) in zip(tensors_in(inputs), tensors_in(again), strict=True)
    )


def test_an_empty_cache_has_no_tensors() -> None:
    inputs = example_inputs(sample("llama"), batch=1, seq=5, seed=0, cache=0)
    assert [name for name, _ in tensors_in(inputs)] == ["input_ids", "attention_mask"]
    assert inputs[cache_argument(sample("llama").model)].get_seq_length() == 0


@pytest.mark.parametrize("name", ["bert", "vit", "t5"])
def test_models_without_such_a_cache_are_refused(name: str) -> None:
    for length in (0, 4):
        with pytest.raises(BadOption, match="no KV cache"):
            example_inputs(sample(name), batch=1, seq=2, seed=0, cache=length)


def test_tokens_of_a_cache_count_among_the_positions() -> None:
    with pytest.raises(SequenceTooLong, match="a sequence of 257 tokens is longer than the model's 256"):
        example_inputs(sample("llama"), batch=1, seq=1, seed=0, cache=256)


def test_a_call_writes_to_a_cache_of_its_own() -> None:
    loaded = sample("mistral")
    inputs = example_inputs(loaded, batch=1, seq=1, seed=0, cache=3)
    before = dict(tensors_in(inputs))
    with torch.no_grad():
        for _ in range(2):
            own = with_own_caches(inputs)
            loaded.model(**own)
            assert own[cache_argument(loaded.model)].get_seq_length() == 4
    assert inputs[cache_argument(loaded.model)].get_seq_length() == 3
    assert all(tensor is before[name] for name, tensor in tensors_in(inputs))


def test_a_converted_cache_is_of_the_dtype_that_its_layers_say() -> None:
    loaded = sample("llama")
    inputs = example_inputs(loaded, batch=1, seq=1, seed=0, cache=3)
    wide = {name: map_tensors(value, lambda tensor: tensor.double()) for name, value in inputs.items()}
    assert {tensor.dtype for _, tensor in tensors_in(wide)} == {torch.float64}
    for given, dtype in ((wide, torch.float64), (inputs, torch.float32)):
        layers = given[cache_argument(loaded.model)].layers
        assert {getattr(layer, "dtype", dtype) for layer in layers} == {dtype}  # layers of later releases name none


def test_a_converted_cache_is_on_the_device_that_its_layers_say() -> None:
    inputs = example_inputs(sample("llama"), batch=1, seq=1, seed=0, cache=3)
    moved = {name: map_tensors(value, lambda tensor: tensor.to("meta")) for name, value in inputs.items()}
    for given, device in ((moved, "meta"), (inputs, "cpu")):
        layers = given[cache_argument(sample("llama").model)].layers
        assert {layer.device.type for layer in layers} == {device}
