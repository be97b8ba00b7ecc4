"""Checks of mixed precision in parallel training, run on each rank: several steps equal those of PyTorch."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from tests.distributed.commands.commands import QUICK, run, small_model
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Layers
from tests.distributed.recipes.saved import shared_folder
from tests.distributed.recipes.sharded_training import sharded_by_pytorch, steps_of, whole
from tests.distributed.recipes.tensor_parallel import PLAN
from tests.distributed.recipes.tensor_parallel import Layers as DivisibleLayers
from tests.distributed.recipes.training import EAGER, STEPS, assert_close, loss_of
from thunder_core.foundation.errors import NothingToTrain
from thunder_core.passes.recipe import Plugin
from thunder_core.passes.transforms.autocast import Autocast
from thunder_core.passes.transforms.quantize import Quantize


class InBFloat16(nn.Module):
    """An eager linear layer whose operands are cast to bfloat16, as the recipe bf16 defines it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = nn.functional.linear(x.bfloat16(), self.weight.bfloat16()).to(x.dtype)
        return product if self.bias is None else product + self.bias


def in_bfloat16(model: nn.Module) -> nn.Module:
    """A model whose linear layers multiply in bfloat16, in eager PyTorch."""
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Linear:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, InBFloat16(layer))
    return model


def bf16_with_fsdp_equals_pytorch(order: tuple[str, ...]) -> None:
    """The sum trains the float parameters: losses, gradients and parameters are those of FSDP2, in either order."""
    compiled = thunder.compile(Layers(torch.float32, seed=dist.get_rank()), list(order), without=EAGER)
    twin: Any = in_bfloat16(Layers(torch.float32))
    sharded_by_pytorch(twin, twin.layers)
    assert loss_of(compiled, 0).requires_grad
    assert_equal(*(steps_of(model, "adamw", steps=STEPS) for model in (compiled, twin)))


def bf16_with_fsdp_equals_a_policy() -> None:
    """Without biases, the sum is FSDP2 with a policy: products in bfloat16, gradients reduced in float32."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
    compiled, twin = (without_biases() for _ in range(2))
    compiled = thunder.compile(compiled, ["fsdp", "bf16"], without=EAGER)
    for layer in twin.modules():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mp_policy=policy)
    fully_shard(twin)
    assert_equal(steps_of(compiled), steps_of(twin))


def bf16_with_fsdp_gathers_bfloat16() -> None:
    """Weights that are rounded to bfloat16 are gathered in bfloat16, and again in the backward, which saves none."""
    compiled = thunder.compile(without_biases(), ["bf16", "fsdp"], without=EAGER)
    loss_of(compiled, 0).backward()
    traces = thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]
    assert [gathered_shapes(trace, torch.float32) for trace in traces] == [{(12, 6)}, set()]  # the token table
    assert [gathered_shapes(trace, torch.bfloat16) for trace in traces] == [{(8, 6), (6, 7), (6, 6), (12, 6)}] * 2
    assert not saved_shapes(compiled) & PARAMETER_SHAPES


def gathered_shapes(trace: Any, dtype: torch.dtype) -> set[tuple[int, ...]]:
    """The shapes of the matrices that a trace gathers in a dtype, with the rows that pad them."""
    gathers = [bsym for bsym in trace.bound_symbols if "all_gather" in bsym.symbol.name]
    proxies = [proxy for bsym in gathers for proxy in bsym.outputs]
    return {tuple(proxy.shape) for proxy in proxies if proxy.dtype is dtype and len(proxy.shape) > 1}


class CastTwice(nn.Module):
    """A weight that two casts read, whose transposes a product reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(7, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        products = [part.bfloat16() @ self.weight.bfloat16().t() for part in (x, x.relu())]
        return products[0].float() + products[1].float()


def casts_and_views_are_not_saved() -> None:
    """The backward computes the casts and views of gathered parameters again."""
    x = torch.randn(2, 6, requires_grad=True)  # so that its gradient needs the weight
    fusing = [*EAGER, "packed-linear", "packed-attention"]  # with these, all cheap operations are recomputed
    compiled, twin = thunder.compile(CastTwice(), "fsdp", without=fusing), sharded_by_pytorch(CastTwice(), ())
    for model in (compiled, twin):
        model(x).sum().backward()
    assert_equal(*([whole(model.weight.grad)] for model in (compiled, twin)))
    assert not saved_shapes(compiled) & PARAMETER_SHAPES


PARAMETER_SHAPES = {(7, 6), (6, 7), (11, 6), (6, 6)}


def saved_shapes(compiled: Any) -> set[tuple[int, ...]]:
    """The shapes of the tensors, apart from shards, that the last forward saved for its backward."""
    _, *saved = thunder.last_traces(compiled)[-1].outputs
    return {tuple(proxy.shape) for proxy in saved if "_local_shards" not in proxy.name}


def without_biases() -> nn.Module:
    """Layers in float32 whose linear layers have no biases and share no weights."""
    model = Layers(torch.float32)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.bias = None
    return model


def bf16_with_ddp_equals_pytorch() -> None:
    compiled = thunder.compile(Layers(torch.float32, seed=dist.get_rank()), ["bf16", "ddp"], without=EAGER)
    twin = DistributedDataParallel(in_bfloat16(Layers(torch.float32)), find_unused_parameters=True)
    assert_equal(*(steps_of(model, "adamw", steps=STEPS) for model in (compiled, twin)))


def bf16_with_replicated_shards_equals_pytorch() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    axes = {"fsdp.process_group": "shard", "ddp.process_group": "replicate"}
    model = Layers(torch.float32, seed=dist.get_rank())
    compiled = thunder.compile(model, ["ddp", "bf16", "fsdp"], without=EAGER, **axes)
    twin: Any = in_bfloat16(Layers(torch.float32))
    for module in (*twin.layers, twin):
        fully_shard(module, mesh=mesh)
    assert_equal(*(steps_of(model, "adamw", steps=STEPS) for model in (compiled, twin)))


def bf16_with_tensor_parallel_equals_pytorch() -> None:
    """Each rank rounds its partial sums to bfloat16; apart from that, the steps are those of one process."""
    trains_divided_layers(["tensor-parallel", "bf16"])


def bf16_with_tensor_parallel_and_fsdp_equals_pytorch() -> None:
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    axes = {"fsdp.process_group": "dp", "tensor-parallel.process_group": "tp"}
    trains_divided_layers(["bf16", "fsdp", "tensor-parallel"], **axes)


def trains_divided_layers(recipes: list[str], **axes: str) -> None:
    options = {"parallelize_plan": PLAN, "without": EAGER, **axes}
    compiled = thunder.compile(DivisibleLayers(torch.float32), recipes, **options)
    twin = in_bfloat16(DivisibleLayers(torch.float32))
    assert_close(*(steps_of(model, loss=same_loss, steps=STEPS) for model in (compiled, twin)), 2e-2)
    names = [name for name, parameter in compiled.named_parameters() if parameter.dtype != torch.float32]
    assert names == []
    assert {parameter.requires_grad for parameter in compiled.parameters()} == {True}


def same_loss(model: Any, step: int) -> torch.Tensor:
    """The loss on inputs that are the same on all ranks."""
    generator = torch.Generator().manual_seed(step)
    result: torch.Tensor = model(torch.randint(0, 11, (3, 4), generator=generator)).float().pow(2).mean()
    return result


class Adapted(nn.Module):
    """A frozen layer with two trained low-rank matrices, as in LoRA."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) + self.up(self.down(x))
        return result


def with_adapters() -> Layers:
    """Layers whose linear layers are frozen, each with a trained adapter; the other parameters are trained."""
    model = Layers(torch.float32)
    for block in model.layers:
        block.up, block.down = Adapted(block.up), Adapted(block.down)
    model.unused.requires_grad_(False)
    return model


def adapters_of_quantized_layers_equal_pytorch(recipe: str, scheme: str) -> None:
    """The sum of `fsdp` or `ddp` with 8 bits quantizes frozen layers, and trains the other parameters."""
    settings = Quantize(scheme)
    for order in ([recipe, scheme], [scheme, recipe]):
        compiled = thunder.compile(with_adapters(), order, without=[*EAGER, "packed-linear"])
        twin: Any = settings.prepare(with_adapters())
        assert {type(layer.up.base).__name__ for layer in twin.layers} == {"Int8WeightOnlyLinear"}
        if recipe == "fsdp":
            sharded_by_pytorch(twin, twin.layers)
        else:
            twin = DistributedDataParallel(twin)
        assert_equal(*(steps_of(model, "adamw", steps=STEPS) for model in (compiled, twin)))
        codes = compiled.layers[0].up.base.codes
        assert codes.dtype is torch.int8
        assert torch.equal(codes, settings.prepare(with_adapters()).layers[0].up.base.codes)
    trained = [name for name, parameter in compiled.named_parameters() if parameter.requires_grad]
    assert "layers.0.up.down.weight" in trained
    assert "table.weight" in trained


def small_llama() -> LlamaForCausalLM:
    """A Llama whose layers have columns in whole groups of 16, the smallest groups of codes in 4 bits."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 31, **heads}
    return LlamaForCausalLM(LlamaConfig(**sizes))


def llama_with_adapters() -> LlamaForCausalLM:
    """A frozen Llama with trained adapters."""
    model = small_llama().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
        layer.mlp.down_proj = Adapted(layer.mlp.down_proj)
    return model


def llama_with_peft() -> Any:
    """A frozen Llama with trained adapters of PEFT."""
    import peft

    config = peft.LoraConfig(r=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    return peft.get_peft_model(small_llama(), config)


def llama_loss(model: Any, step: int) -> torch.Tensor:
    """The loss on tokens of this rank."""
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    tokens = torch.randint(0, 31, (2, 6), generator=generator)
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def adapters_of_llama_equal_pytorch(adapted: str, scheme: str, kind: str) -> None:
    """Only adapters of a Llama are trained, whose frozen layers have codes of a kind; the steps are those of FSDP2."""
    create = {"own": llama_with_adapters, "peft": llama_with_peft}[adapted]
    compiled = thunder.compile(create(), [scheme, "fsdp"], without=EAGER)
    twin: Any = Quantize(scheme).prepare(create())
    assert kind in {type(module).__name__ for module in compiled.modules()}
    layers = next(module for module in twin.modules() if isinstance(module, nn.ModuleList))
    sharded_by_pytorch(twin, layers)
    assert_close(steps_of(compiled, "adamw", loss=llama_loss), steps_of(twin, "adamw", loss=llama_loss), 1e-5)
    trained = [name for name, parameter in compiled.named_parameters() if parameter.requires_grad]
    assert len(trained) == 8
    assert all("up" in name or "down" in name or "lora" in name for name in trained)


def frozen_codes_are_refused(recipe: str) -> None:
    """Quantized weights without trained parameters have no gradients, so a training of such a model is refused."""
    for scheme in ("int8-weight-only", "int8-dynamic"):
        with pytest.raises(NothingToTrain, match=rf"frozen, so the recipe {recipe} has no gradients") as error:
            thunder.compile(DivisibleLayers(torch.float32), [recipe, scheme], without=EAGER)
        assert "nf4-lora" in error.value.fix
        assert "adapters" in error.value.fix
        compiled = thunder.compile(DivisibleLayers(torch.float32).eval(), [recipe, scheme], without=EAGER)
        with torch.no_grad():
            assert loss_of(compiled, 0).isfinite()


def autocast_equals_pytorch(recipe: str) -> None:
    """`torch.autocast` around calls, and the transform Autocast, train as PyTorch does under `torch.autocast`."""
    mixed = Plugin("mixed", transforms=(Autocast(),))
    twins: dict[str, Any] = {"ddp": DistributedDataParallel, "fsdp": lambda model, **_: sharded_by_pytorch(model, ())}
    for parts, loss in (([recipe], autocast_loss), ([recipe, mixed], loss_of)):
        compiled = thunder.compile(Layers(torch.float32, seed=dist.get_rank()), parts, without=EAGER)
        twin = twins[recipe](Layers(torch.float32), find_unused_parameters=True)
        assert_equal(steps_of(compiled, loss=loss, steps=STEPS), steps_of(twin, loss=autocast_loss, steps=STEPS))


def autocast_loss(model: Any, step: int) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return loss_of(model, step)


def the_command_trains_float_weights() -> None:
    """The artifact of `bf16` and `fsdp` trains all parameters on every rank."""
    folder = shared_folder()
    chosen = ("--recipe", "bf16", "--recipe", "fsdp", "--train", "--out", str(folder), *QUICK, "--json")
    status, out, err = run("optimize", small_model(folder.parent), *chosen)
    assert status == 0, err
    if dist.get_rank() == 0:
        assert json.loads(out)["report"]["validation"]["passed"]
    dist.barrier()
    loaded = thunder.load(folder, strict=True)
    tokens = torch.arange(8)[None]
    loaded(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens.clone()).loss.backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())
