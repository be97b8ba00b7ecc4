"""The patterns of transformers' models match in every layer of those models and change no result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from tests.families import assert_same, first_claimed_lines, gradients, inputs_for, sample
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.backend.patterns import hugging_face
from thunder_core.backend.patterns.pattern import Pattern

# Longer patterns before shorter ones. Gemma's comes before the pattern that it contains in float32.
ORDER = (
    *("add_rms_norm_of_gemma", "add_rms_norm", "rms_norm_of_gemma", "rms_norm", "rms_norm_of_t5", "rotary_embedding"),
    *("packed_swiglu", "swiglu", "geglu", "geglu_tanh", "gelu_tanh"),
    *("linear_next_token_loss", "next_token_loss"),
    *("linear_summed_next_token_loss", "summed_next_token_loss", "cross_entropy"),
)
DECODER = {"rms_norm": 1, "add_rms_norm": 4, "rotary_embedding": 2, "swiglu": 2, "next_token_loss": 1}
GEMMA = {"rms_norm_of_gemma": 5, "add_rms_norm_of_gemma": 4, "rotary_embedding": 2, "geglu_tanh": 2}
FOUND: dict[str, dict[str, int]] = {
    "llama": DECODER,
    "mistral": DECODER,
    "qwen2": DECODER,
    "qwen3": {**DECODER, "rms_norm": 5},  # also of queries and keys
    "gemma2": {**GEMMA, "next_token_loss": 1},
    "phi3": {"packed_swiglu": 2, **{name: count for name, count in DECODER.items() if name != "swiglu"}},
    "gpt2": {"gelu_tanh": 2, "next_token_loss": 1},
    "bert": {"cross_entropy": 1},
    "t5": {"rms_norm_of_t5": 12, "cross_entropy": 1},
}
# Without conversions, the layers match the patterns of Llama.
T5_IN_FLOAT32 = {"rms_norm": 2, "add_rms_norm": 10, "cross_entropy": 1}

# What a Trainer passes besides labels, and the loss that is computed then.
LOSSES: list[tuple[dict[str, Any], str]] = [
    ({}, "next_token_loss"),
    ({"num_items_in_batch": torch.tensor(5)}, "summed_next_token_loss"),
    ({"num_items_in_batch": 5}, "summed_next_token_loss"),
]


def everything() -> OperatorExecutor:
    """An executor that runs each pattern as it is written."""
    executor = OperatorExecutor("mine")
    for name in ORDER:
        pattern: Pattern = getattr(hugging_face, name)
        executor.replaces(pattern)(pattern.function)
    return executor


def claims(compiled: Any) -> dict[str, int]:
    return dict(Counter(bsym.symbol.short_name for bsym in first_claimed_lines(compiled) if bsym.executor == "mine"))


def test_every_pattern_is_tried_here() -> None:
    assert set(ORDER) == {name for name, value in vars(hugging_face).items() if isinstance(value, Pattern)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FOUND)
def test_found_in_every_layer(name: str, dtype: str) -> None:
    loaded = sample(name, dtype)
    inputs = inputs_for(loaded, labels=True)
    compiled = thunder.jit(loaded.model, executors=[everything(), "torch"])
    with torch.no_grad():
        assert_same(compiled(**inputs), loaded.model(**inputs))
    assert claims(compiled) == (T5_IN_FLOAT32 if (name, dtype) == ("t5", "float32") else FOUND[name])


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "t5"])
def test_found_in_training_with_the_same_gradients(name: str) -> None:
    loaded = sample(name)
    inputs = inputs_for(loaded, labels=True)
    compiled = thunder.jit(loaded.model, executors=[everything(), "torch"])
    assert_same(*(gradients(model, loaded.model, inputs) for model in (compiled, loaded.model)))
    assert claims(compiled) == (T5_IN_FLOAT32 if name == "t5" else FOUND[name])


@pytest.mark.parametrize(("count", "name"), LOSSES)
def test_the_head_joins_the_loss_if_the_logits_are_unread(count: Any, name: str) -> None:
    loaded = sample("llama", "bfloat16")
    inputs = {**inputs_for(loaded, labels=True), **count}
    compiled = thunder.jit(lambda **inputs: loaded.model(**inputs).loss, executors=[everything(), "torch"])
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs), loaded.model(**inputs).loss, rtol=0, atol=0)
    assert claims(compiled)[f"linear_{name}"] == 1


@pytest.mark.parametrize(("count", "name"), LOSSES)
def test_the_loss_is_found_if_the_logits_are_returned(count: Any, name: str) -> None:
    loaded = sample("llama")
    inputs = {**inputs_for(loaded, labels=True), **count}
    compiled = thunder.jit(loaded.model, executors=[everything(), "torch"])
    assert_same(*(gradients(model, loaded.model, inputs) for model in (compiled, loaded.model)))
    assert claims(compiled)[name] == 1


def test_a_replacement_of_another_kind_gives_eagers_results() -> None:
    """PyTorch's own rms_norm replaces seven lines and rounds differently."""
    executor = OperatorExecutor("mine")

    @executor.replaces(hugging_face.rms_norm)
    def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        return functional.rms_norm(hidden, (hidden.shape[-1],), weight, eps)

    loaded = sample("llama")
    inputs = inputs_for(loaded)
    compiled = thunder.jit(loaded.model, executors=[executor])
    with torch.no_grad():
        assert_same(compiled(**inputs), loaded.model(**inputs))
    assert claims(compiled) == {"rms_norm": 5}
    last = [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "mine"][-1]
    assert last.module == "model.norm"
    assert last.source is not None
    assert last.source.filename.endswith("modeling_llama.py")


def test_the_models_own_functions_are_patterns() -> None:
    """Users write the pattern like this: the function that the model calls, imported from its module."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    executor = OperatorExecutor("mine")
    executor.replaces(llama.apply_rotary_pos_emb)(lambda q, k, cos, sin: llama.apply_rotary_pos_emb(q, k, cos, sin))
    loaded = sample("llama")
    inputs = inputs_for(loaded)
    compiled = thunder.jit(loaded.model, executors=[executor])
    with torch.no_grad():
        assert_same(compiled(**inputs), loaded.model(**inputs))
    assert sum(claims(compiled).values()) == 2
