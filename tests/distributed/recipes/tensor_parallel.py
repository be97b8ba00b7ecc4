"""Checks of tensor parallelism, run on each rank: ten steps equal those of `parallelize_module`."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

import thunder_core as thunder
from tests.distributed.models import tokens
from tests.distributed.recipes.saved import shared_folder
from tests.distributed.recipes.sharded_training import collectives, steps_of
from tests.distributed.recipes.training import DTYPES, EAGER, STEPS, assert_close
from thunder_core.foundation.errors import BadOption, RecipeMismatch
from thunder_core.passes.transforms.quantize import Quantize
from thunder_core.tracing.analysis.collectives import collectives_of

ROUNDING = {"float64": 1e-12, "bfloat16": 2e-2, "float32": 1e-5}


class Block(nn.Module):
    """A layer whose inner size two ranks divide."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6, dtype=dtype)
        self.gate = nn.Linear(6, 8, bias=False, dtype=dtype)
        self.up = nn.Linear(6, 8, dtype=dtype)
        self.down = nn.Linear(8, 6, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        result: Tensor = x + self.down(self.gate(y).tanh() * self.up(y))
        return result


class Layers(nn.Module):
    """Two layers, between a token table and a head that are not divided."""

    def __init__(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(11, 6, dtype=dtype)
        self.layers = nn.ModuleList(Block(dtype) for _ in range(2))
        self.head = nn.Linear(6, 11, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.head(x)
        return result


PLAN = {"layers.*.gate": "colwise", "layers.*.up": "colwise", "layers.*.down": "rowwise"}
STYLES: dict[str, Any] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


def loss_of(model: Any, step: int) -> Tensor:
    result: Tensor = model(tokens(step, 0)).float().pow(2).mean()
    return result


def by_pytorch(model: nn.Module, plan: dict[str, str]) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    result: nn.Module = parallelize_module(model, mesh, {name: STYLES[style]() for name, style in plan.items()})
    return result


def compiled_layers(dtype: torch.dtype = torch.float64, plan: Any = PLAN) -> Any:
    model = Layers(dtype, seed=dist.get_rank())
    return thunder.compile(model, "tensor-parallel", without=EAGER, parallelize_plan=plan)


def equals_pytorch(dtype: str, optimizer: str) -> None:
    compiled, twin = compiled_layers(DTYPES[dtype]), by_pytorch(Layers(DTYPES[dtype]), PLAN)
    results = (steps_of(model, optimizer, loss=loss_of, steps=STEPS) for model in (compiled, twin))
    assert_close(*results, ROUNDING[dtype])
    for actual, expected in zip(compiled.parameters(), twin.parameters(), strict=True):
        assert type(actual) is type(expected)
        assert getattr(actual, "placements", None) == getattr(expected, "placements", None)


def plan_of_pytorchs_styles() -> None:
    styles = {name: STYLES[style]() for name, style in PLAN.items()}
    one, other = compiled_layers(plan=styles), compiled_layers()
    assert torch.equal(loss_of(one, 0), loss_of(other, 0))
    with pytest.raises((BadOption, RecipeMismatch), match=r"use_local_output=False|not a list of names"):
        compiled_layers(plan={"layers.*.up": ColwiseParallel(use_local_output=False)})


def communicates_once_for_layers_with_one_input() -> None:
    compiled = compiled_layers()
    loss_of(compiled, 0).backward()
    forward, backward = collectives(compiled)
    assert [one.kind for one in (*forward, *backward)] == ["all_reduce"] * 4
    assert {one.bytes for one in (*forward, *backward)} == {8 * 12 * 6}


def small(kind: Any, config: Any) -> Any:
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "vocab_size": 11, "use_cache": False}
    torch.manual_seed(0)
    return kind(config(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=4, attn_implementation="eager"))


def models_loss(model: Any, step: int) -> Tensor:
    batch = tokens(step, 0)
    result: Tensor = model(input_ids=batch, labels=batch.clone()).loss
    return result


def llama_equals_pytorch() -> None:
    twin = small(LlamaForCausalLM, LlamaConfig)
    compiled = thunder.compile(copy.deepcopy(twin), ["hf-llama3", "tensor-parallel"], without=EAGER)
    plan = {f"model.{name}": style for name, style in twin.config.base_model_tp_plan.items()}
    expected = steps_of(by_pytorch(twin, plan), loss=models_loss)
    assert_close(steps_of(compiled, loss=models_loss), expected, ROUNDING["float32"])
    forward, _ = collectives(compiled)
    assert [one.kind for one in forward] == ["all_reduce"] * 4


def norms_of_heads_get_whole_gradients() -> None:
    """A model whose plan has parameters that each rank uses for its own heads equals the model in one process."""
    whole = small(Qwen3ForCausalLM, Qwen3Config)
    compiled = thunder.compile(copy.deepcopy(whole), ["default", "tensor-parallel"], without=EAGER)
    assert_close(steps_of(compiled, loss=models_loss), steps_of(whole, loss=models_loss), ROUNDING["float32"])


def generates() -> None:
    """Greedy generation gives the tokens of one process, again without compiling, and with another prompt."""
    whole = small(LlamaForCausalLM, LlamaConfig).eval()
    compiled = thunder.compile(copy.deepcopy(whole), ["hf-llama3", "tensor-parallel"], without=EAGER)
    misses = []
    for prompt in (torch.arange(4)[None], torch.arange(4)[None], torch.arange(3, 9)[None]):
        options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 5, "do_sample": False}
        tokens, expected = (model.generate(prompt, use_cache=True, **options) for model in (compiled, whole))
        assert torch.equal(tokens, expected)
        misses.append(thunder.cache_misses(compiled))
    assert misses[0] == misses[1]
    forward = [one.kind for one in collectives_of(thunder.last_traces(compiled)[-1])]
    assert forward == ["all_reduce"] * 4


def wide_llama() -> Any:
    """A Llama with large weights; all ranks have the same weights."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 11}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attention_bias=True, mlp_bias=True)
    torch.manual_seed(0)
    whole = LlamaForCausalLM(config).eval()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, 0, 0.25)
    return whole


def quantized(recipes: Any, **options: Any) -> Any:
    """The Llama, compiled by recipes."""
    return thunder.compile(wide_llama(), recipes, without=EAGER, **options)


def generates_with_quantized_layers(scheme: str) -> None:
    """Each rank has a part of the codes, and the tokens are those of one process with the same codes."""
    groups = {"group_size": 32} if scheme == "int4-weight-only" else {}
    divided, full = quantized(["tensor-parallel", scheme], **groups), Quantize(scheme, **groups).prepare(wide_llama())
    prompt = torch.arange(4)[None]
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 2, "do_sample": False}
    facts = {"return_dict_in_generate": True, "output_logits": True}
    found, wanted = (model.generate(prompt, **options, **facts) for model in (divided, full))
    logits = [torch.stack(generated.logits) for generated in (found, wanted)]
    if scheme == "int8-dynamic":  # sums of integers are exact
        assert torch.equal(*logits)
    torch.testing.assert_close(*logits, rtol=0.02, atol=0.02 * float(logits[1].abs().max()))  # bfloat16 products
    assert torch.equal(found.sequences, wanted.sequences)
    projection = divided.model.layers[0].mlp
    assert (projection.up_proj.weight.shape, projection.down_proj.weight.shape) == ((64, 64), (64, 64))
    expected = full.model.layers[0].mlp
    first = 64 * dist.get_rank()
    assert torch.equal(projection.up_proj.weight, expected.up_proj.weight[first : first + 64])
    assert torch.equal(projection.down_proj.weight, expected.down_proj.weight[:, first : first + 64])


def refuses_quantized_layers_that_ranks_cannot_divide() -> None:
    with pytest.raises(RecipeMismatch, match=r"o_proj are quantized in groups of 64, .* among 2 ranks") as error:
        quantized(["tensor-parallel", "int4-weight-only"])
    assert "smaller group_size" in error.value.fix
    with pytest.raises(RecipeMismatch, match="NormalFloatLoRALinear") as error:
        quantized(["tensor-parallel", "nf4-lora"])
    assert "int8-weight-only" in error.value.fix


def saves_and_loads() -> None:
    compiled = compiled_layers()
    loss_of(compiled, 0).backward()
    folder = shared_folder()
    if dist.get_rank() == 0:
        thunder.save(compiled, folder)
    dist.barrier()
    loaded = thunder.load(folder, Layers(seed=dist.get_rank()), strict=True)
    assert torch.equal(loss_of(loaded, 1), loss_of(compiled, 1))


def refusals() -> None:
    for plan, what in (
        ({"layers.*.up": "sequence_parallel"}, "style 'sequence_parallel'"),
        ({"layers.*.other": "colwise"}, "no module has this name"),
        ({"layers.*.norm": "colwise"}, "which is of class LayerNorm"),
        ({**PLAN, "layers.0.up": "rowwise"}, "two styles for layers.0.up"),
        ({"head": "colwise"}, "11 rows of head.weight cannot be divided among 2 ranks"),
    ):
        with pytest.raises(RecipeMismatch, match=what):
            compiled_layers(plan=plan)
    config = LlamaConfig(hidden_size=6, intermediate_size=6, num_hidden_layers=1, vocab_size=11, num_attention_heads=3)
    with pytest.raises(RecipeMismatch, match=r"3 heads .*cannot be divided among 2 ranks"):
        thunder.compile(LlamaForCausalLM(config), "tensor-parallel")
    tied = Layers()
    tied.layers[1].up.weight = tied.layers[0].up.weight
    with pytest.raises(RecipeMismatch, match=r"layers.0.up and layers.1.up share a parameter"):
        thunder.compile(tied, "tensor-parallel", parallelize_plan=PLAN)
    with pytest.raises(RecipeMismatch, match="has no plan"):
        thunder.compile(Layers(), "tensor-parallel")
    with pytest.raises(BadOption, match="not a list of names and styles"):
        compiled_layers(plan="layers")
