"""Models of transformers that collect hidden states run with one program, whether or not their hooks are installed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import thunder_core as thunder
from thunder_core.tracing.library.capturing_hooks import FLAG

HIDDEN = {"input_ids": torch.tensor([[3, 4, 5]]), "output_hidden_states": True, "use_cache": False}
SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 16}


def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaModel(transformers.LlamaConfig(**SIZES)).eval().requires_grad_(requires_grad=False)


def assert_as_eager(compiled: Any, model: Any) -> None:
    torch.testing.assert_close(compiled(**HIDDEN).hidden_states, copy.deepcopy(model)(**HIDDEN).hidden_states)


@pytest.mark.parametrize("eager_first", [False, True])
def test_first_call_and_later_calls_use_one_program(eager_first: bool) -> None:
    model = llama()
    if eager_first:
        model(**HIDDEN)
    compiled = thunder.jit(model)
    for _ in range(2):
        assert_as_eager(compiled, model)
    assert (thunder.cache_misses(compiled), hasattr(model, FLAG)) == (1, eager_first)
    assert all(len(module._forward_hooks) <= eager_first for module in model.modules())
    model(**HIDDEN)
    assert_as_eager(compiled, model)
    assert thunder.cache_misses(compiled) == 1


def test_a_users_hook_is_called_as_well() -> None:
    model = llama()
    model.layers[0].register_forward_hook(lambda module, args, output: output * 2)
    compiled = thunder.jit(model)
    for _ in range(2):
        assert_as_eager(compiled, model)
    model(**HIDDEN)
    assert_as_eager(compiled, model)
    model.layers[1].register_forward_hook(lambda module, args, output: output * 3)
    assert_as_eager(compiled, model)


def test_an_artifact_serves_a_model_that_was_never_called(tmp_path: Path) -> None:
    compiled = thunder.jit(llama())
    compiled(**HIDDEN)
    thunder.save(compiled, tmp_path / "out")
    model = llama()
    assert_as_eager(thunder.load(tmp_path / "out", model, strict=True), model)
