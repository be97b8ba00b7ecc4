"""Generation with a static cache: eager PyTorch's tokens, with few programs, and no token copies the cache."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import CompileConfig, DynamicCache, GenerationConfig, StaticCache
from transformers.generation import BaseStreamer

import thunder_core as thunder
from tests.generation.models import greedy, model_of, prompt_of
from tests.generation.modes import MODES, assert_same
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import RecipeMismatch
from thunder_core.foundation.transformers_versions import cache_argument, returned_cache
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.benchmark.allocations import peak_allocated
from thunder_recipes.hf_generate import HFGenerate

ROOM = 1024  # positions of a cache, many more than any other size of these models
KEYS = 2 * ROOM * 8 * 4  # bytes of the keys of one layer and row: two heads of eight floats


class Uncompiled(HFGenerate):
    """The recipe with the executor torch, which compiles no kernels."""

    executors = ("torch",)


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    model = model_of("llama")
    return model, thunder.compile(model, Uncompiled)


@pytest.fixture(scope="module")
def programs(pair: tuple[Any, Any]) -> tuple[Trace, Trace]:
    """The programs that a prompt and a later token run, with a large cache."""
    compiled = thunder.compile(pair[0], Uncompiled)
    greedy(compiled, prompt_of(2, 7), 2, max_cache_len=ROOM)
    token, prompt = (program.last("computation") for program in specializations_of(compiled).programs)
    return prompt, token


def sizes_of(proxy: TensorProxy) -> tuple[int, ...]:
    """The sizes of a tensor in the traced call."""
    return tuple(map(hint_of, proxy.shape))


def tensors_of(trace: Trace) -> list[TensorProxy]:
    """The output tensors of the bound symbols of a trace, including nested ones."""
    parts = (*trace.bound_symbols, *(part for bsym in trace.bound_symbols for part in bsym.operations))
    return [proxy for part in parts for proxy in part.defines if isinstance(proxy, TensorProxy)]


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_two_programs_serve_all_lengths_of_prompts_texts_and_caches(family: str) -> None:
    model = model_of(family)
    compiled = thunder.compile(model, Uncompiled)
    for batch, length, tokens in ((2, 7, 4), (3, 9, 9), (1, 30, 3)):
        prompt = prompt_of(batch, length)
        assert torch.equal(greedy(compiled, prompt, tokens), greedy(model, prompt, tokens))
    assert thunder.cache_misses(compiled) == 2, thunder.recompile_reasons(compiled)
    assert not any(program.constant_because for program in specializations_of(compiled).programs)


@pytest.mark.parametrize("mode", ["beam search", "left padding"])
def test_a_mode_gives_eagers_tokens(mode: str, pair: tuple[Any, Any]) -> None:
    model, compiled = pair
    assert_same(MODES[mode](compiled, 2, 7), MODES[mode](model, 2, 7))


def test_no_line_for_a_token_makes_a_tensor_of_the_caches_size(programs: tuple[Trace, Trace]) -> None:
    _, trace = programs
    names = [bsym.symbol.short_name for bsym in trace.bound_symbols]
    assert names.count("index_copy_") == 4, "keys and values of two layers"
    inputs = {proxy.name for proxy in trace.inputs}
    for bsym in trace.bound_symbols:
        assert bsym.symbol.short_name != "cat" or not inputs & {proxy.name for proxy in bsym.inputs}
    made = [math.prod(sizes_of(proxy)) * proxy.dtype.itemsize for proxy in tensors_of(trace)]
    assert max(made) < KEYS / 4


def test_a_token_allocates_no_memory_of_the_caches_size(pair: tuple[Any, Any]) -> None:
    model, compiled = pair
    cache = StaticCache(config=model.config, max_cache_len=ROOM)
    given = {cache_argument(model): cache}
    with torch.no_grad():
        compiled(prompt_of(1, 7), **given)
        places = [tensor.data_ptr() for layer in cache.layers for tensor in (layer.keys, layer.values)]
        compiled(prompt_of(1, 1), **given)
        assert peak_allocated(lambda: compiled(prompt_of(1, 1), **given)) < KEYS / 2
    assert places == [tensor.data_ptr() for layer in cache.layers for tensor in (layer.keys, layer.values)]
    assert [int(layer.get_seq_length()) for layer in cache.layers] == [9, 9]


def test_a_prompt_has_the_logits_of_its_last_token_alone(programs: tuple[Trace, Trace]) -> None:
    trace, _ = programs
    (head,) = [bsym for bsym in trace.bound_symbols if "lm_head_weight" in {proxy.name for proxy in bsym.inputs}]
    assert [sizes_of(proxy) for proxy in head.defines] == [(2, 1, 64)]
    assert (2, 7, 64) not in map(sizes_of, tensors_of(trace))


CHOICES: dict[str, tuple[dict[str, Any], type]] = {
    "nothing": ({}, StaticCache),
    "a cache": ({"cache_implementation": "dynamic"}, DynamicCache),
    "a config": ({"generation_config": GenerationConfig(cache_implementation="dynamic")}, DynamicCache),
    "no cache": ({"use_cache": False}, type(None)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_cache_options_of_a_call_take_precedence(name: str, pair: tuple[Any, Any]) -> None:
    options, kind = CHOICES[name]
    found = greedy(pair[1], prompt_of(2, 7), 3, return_dict_in_generate=True, **options)
    assert type(returned_cache(found)) is kind
    assert type(returned_cache(greedy(pair[0], prompt_of(2, 7), 3, return_dict_in_generate=True))) is DynamicCache


def test_a_cache_that_is_given_is_continued(pair: tuple[Any, Any]) -> None:
    texts, name_of_cache = [], cache_argument(pair[0])
    for model in pair:
        cache = StaticCache(config=model.config, max_cache_len=40)
        first = greedy(model, prompt_of(1, 7), 4, **{name_of_cache: cache})
        longer = torch.cat([first, prompt_of(1, 3)], 1)
        texts.append(greedy(model, longer, 4, **{name_of_cache: cache}))
    assert torch.equal(*texts)


def test_tokens_that_are_guessed_ahead_have_a_cache_that_can_be_cropped(pair: tuple[Any, Any]) -> None:
    model, compiled = pair
    found, expected = (greedy(each_model, prompt_of(1, 7), assistant_model=model) for each_model in (compiled, model))
    assert torch.equal(found, expected)


def compiling_everywhere(fullgraph: bool = False) -> CompileConfig:
    """The config with which transformers compiles on the CPU as on GPUs."""
    config = CompileConfig(fullgraph=fullgraph)
    config._compile_all_devices = True
    return config


def test_transformers_compiles_no_compiled_model(pair: tuple[Any, Any]) -> None:
    model, compiled = pair
    expected = greedy(model, prompt_of(1, 7), 4)
    for fullgraph in (False, True):
        config = compiling_everywhere(fullgraph)
        assert torch.equal(greedy(compiled, prompt_of(1, 7), 4, compile_config=config), expected)
    assert not hasattr(model, "_compiled_call"), "the model that was compiled would run this"


def test_call_that_transformers_compiled_belongs_to_the_model_alone(pair: tuple[Any, Any]) -> None:
    model, compiled = pair
    calls: list[int] = []
    config = compiling_everywhere()
    model._compiled_call = lambda *args, **kwargs: calls.append(1) or model(*args, **kwargs)
    model._last_compile_config = config
    try:
        greedy(compiled, prompt_of(1, 7), 3, compile_config=config)
        assert not calls
        greedy(model, prompt_of(1, 7), 3, cache_implementation="static", compile_config=config)
        assert calls == [1, 1]
    finally:
        del model._compiled_call, model._last_compile_config


class ChangesModel(BaseStreamer):  # type: ignore[misc]
    """A streamer that changes a model at the fifth token: by then, calls skip the reads of an unchanged model."""

    def __init__(self, model: Any, change: Callable[[Any], Any]) -> None:
        self.model, self.change, self.tokens = model, change, -1  # the prompt comes first

    def put(self, value: torch.Tensor) -> None:
        self.tokens += 1
        if self.tokens == 5:
            self.change(self.model)

    def end(self) -> None:
        pass


MODEL_CHANGES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda model: setattr(model.model.norm, "variance_epsilon", 3.0),
    "a weight": lambda model: setattr(model.lm_head, "weight", nn.Parameter(model.lm_head.weight.flip(0))),
    "the data of a weight": lambda model: setattr(model.lm_head.weight, "data", model.lm_head.weight.flip(0)),
    "the values of a weight": lambda model: model.lm_head.weight.data.neg_(),
    "a hook": lambda model: model.model.norm.register_forward_hook(lambda module, args, output: output * 3),
    "a module": lambda model: setattr(model.model.layers[0], "mlp", nn.Identity()),
    "a weight that shares memory": lambda model: setattr(
        model.model.layers[0].mlp.up_proj.weight, "data", model.model.layers[0].mlp.gate_proj.weight.data
    ),
}


@pytest.mark.parametrize("name", MODEL_CHANGES)
def test_a_change_of_the_model_between_tokens_or_generations_is_noticed(name: str, pair: tuple[Any, Any]) -> None:
    results = []
    for make in (copy.deepcopy, lambda model: thunder.compile(copy.deepcopy(model), Uncompiled)):
        model = make(pair[0])
        facts = {"output_logits": True, "return_dict_in_generate": True}
        during = greedy(model, prompt_of(1, 7), 9, streamer=ChangesModel(model, MODEL_CHANGES[name]), **facts)
        after = greedy(model, prompt_of(1, 7), 6, **facts)
        model.model.norm.variance_epsilon = 0.5
        last = greedy(model, prompt_of(1, 7), 6, **facts)
        results.append([torch.stack(found.logits) for found in (during, after, last)])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)
    assert not torch.equal(results[0][0][:4], results[0][1][:4]), "the change must show"


def test_a_copy_generates_the_same(pair: tuple[Any, Any]) -> None:
    copied = pickle.loads(pickle.dumps(copy.deepcopy(pair[1])))
    found = greedy(copied, prompt_of(1, 7), 1, return_dict_in_generate=True)
    assert type(returned_cache(found)) is StaticCache


def test_a_model_that_generates_nothing_is_refused() -> None:
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    with pytest.raises(RecipeMismatch, match="models that generate text; this model is of class BertModel"):
        thunder.compile(transformers.BertModel(config), "hf-generate")
