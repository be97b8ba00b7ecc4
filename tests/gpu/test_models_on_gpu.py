"""Small models of many types on a GPU, compiled by recipes with and without CUDA graphs, against eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import thunder_core as thunder
from tests.families import tensors
from tests.zoo import examine

CAUSAL = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_neox", "opt", "bloom"),
    *("falcon", "mixtral", "qwen3_moe", "olmo2", "deepseek_v3", "granite", "cohere2", "glm4", "gpt_oss", "starcoder2"),
    *("stablelm", "mamba", "mamba2"),
)
OTHER = (
    *("bert", "roberta", "deberta-v2", "electra", "albert", "mpnet", "rwkv", "t5", "bart", "whisper"),
    *("wav2vec2", "vit", "clip", "convnext", "resnet", "segformer", "timesformer"),
)
WITHOUT_CACHE_OF_TOKENS = ("mamba", "mamba2", "rwkv")
WITHOUT_FLOAT64 = ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3")  # products of groups are in float32 at most
TOKENS = 8
CALLS = 3  # the first call runs the kernels, the second records graphs, the third replays them
Inputs = Mapping[str, Any]


def model_on(device: str, model_type: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A small model with its inputs, in eval mode."""
    loaded, inputs, _ = examine.run_in_eager(model_type)
    return loaded.model.eval().to(device), {name: moved(value, device) for name, value in inputs.items()}


def moved(value: Any, target: str | torch.dtype) -> Any:
    """A tensor on another device, or a floating-point tensor in another dtype; other values unchanged."""
    if not isinstance(value, torch.Tensor) or (isinstance(target, torch.dtype) and not value.is_floating_point()):
        return value
    return value.to(target)


def compare_calls(model: torch.nn.Module, inputs: Inputs, recipe: str, tolerance: float) -> None:
    """Compare several calls without gradients: the errors are relative to the norm of each output."""
    with torch.no_grad():
        examine.seed_all()
        expected = [*tensors(model(**inputs))]
        compiled = thunder.compile(model, recipe=recipe)
        for _ in range(CALLS):
            examine.seed_all()
            found = [*tensors(compiled(**inputs))]
            assert [path for path, _ in found] == [path for path, _ in expected]
            for (path, ours), (_, theirs) in zip(found, expected, strict=True):
                assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device), path
                assert error_of(ours, theirs) <= tolerance, path


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference over the norm of the expected numbers, where both are finite."""
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(found), finite)
    ours, theirs = found[finite].double(), expected[finite].double()
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-12))


def compare_training(model_type: str, model: torch.nn.Module, inputs: Inputs, recipe: str) -> None:
    """Compare a step in float64, in which sums in another order differ by little, also after batch normalization.

    Norms and rotary embeddings of transformers compute in float32 in any case. Experts have no products in float64 on a
    GPU.
    """
    dtype = torch.float32 if model_type in WITHOUT_FLOAT64 else torch.float64
    wide = copy.deepcopy(model).to(dtype)
    given = {name: moved(value, dtype) for name, value in inputs.items()}
    examine.put_into_training(wide)
    twin = copy.deepcopy(wide)
    expected = examine.outputs_after_backward(twin, given)
    compiled = thunder.compile(wide, recipe=recipe)
    examine.require_same(examine.outputs_after_backward(compiled, given), expected)
    largest = max(float(parameter.grad.norm()) for parameter in twin.parameters() if parameter.grad is not None)
    for (name, ours), theirs in zip(wide.named_parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None and theirs.grad is not None:
            difference = float((ours.grad - theirs.grad).norm())
            assert difference <= 1e-4 * float(theirs.grad.norm()) + 1e-6 * largest, name


def compare_tokens(model: Any, inputs: Inputs, recipe: str) -> None:
    """Compare the tokens of greedy search, twice; in bfloat16, where near ties decide, only their number."""
    config = GenerationConfig(max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    config.bos_token_id, config.eos_token_id = 1, None
    given = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    expected = model.generate(**given, generation_config=config)
    compiled: Any = thunder.compile(model, recipe=recipe)
    for _ in range(2):
        found = compiled.generate(**given, generation_config=config)
        assert found.shape == expected.shape
        assert model.dtype == torch.bfloat16 or torch.equal(found, expected)


def graphs_recipe(model_type: str, device: str) -> str:
    """The recipe with CUDA graphs for a type: that for Hopper where the GPU and the type allow it."""
    hopper = device == "cuda" and torch.cuda.get_device_capability() >= (9, 0)
    return "hf-llama3-hopper" if hopper and model_type == "llama" else "reduce-overhead"


def check(model_type: str, device: str) -> None:
    """Compare inference, training and generation."""
    model, inputs = model_on(device, model_type)
    compare_calls(model, inputs, "default", 1e-3)
    compare_training(model_type, model, inputs, "default")
    half = copy.deepcopy(model).bfloat16()
    narrow = {name: moved(value, torch.bfloat16) for name, value in inputs.items()}
    recipe = graphs_recipe(model_type, device)
    compare_calls(half, narrow, recipe, 4e-2)
    if model_type in CAUSAL and model_type not in WITHOUT_CACHE_OF_TOKENS:
        compare_tokens(model, inputs, "default")
        compare_tokens(half, narrow, recipe)


@pytest.mark.gpu
@pytest.mark.parametrize("model_type", (*CAUSAL, *OTHER))
def test_on_a_gpu_a_small_model_computes_the_results_of_eager(model_type: str) -> None:
    check(model_type, "cuda")


@pytest.mark.filterwarnings("ignore:the recipe reduce-overhead skips")
def test_on_a_cpu_the_same_comparisons_hold() -> None:
    check("llama", "cpu")
