"""Checks of parallel training by recipes, run on each rank: ten steps equal PyTorch's own."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Clipping, Layers, Normalized, tokens
from thunder_core.backend.parallel.collectives import FUNCTIONAL
from thunder_core.foundation.errors import OperationFailed
from thunder_core.tracing.analysis.collectives import Collective, collectives_of

STEPS = 10
FEW = 3  # steps of cases that do not differ in what happens from step to step
EAGER = ["inductor"]  # left out, so that results are those of eager PyTorch bit by bit
DTYPES = {"float64": torch.float64, "bfloat16": torch.bfloat16}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}


def loss_of(model: Any, step: int) -> torch.Tensor:
    result: torch.Tensor = model(tokens(step, dist.get_rank())).float().pow(2).mean()
    return result


def steps_of(model: Any, optimizer: str = "sgd", loss=loss_of, accumulate: int = 1, steps: int = FEW) -> list[Any]:
    """The losses, the gradients and at the end the parameters and buffers of some steps."""
    trained = OPTIMIZERS[optimizer](model.parameters())
    results: list[Any] = []
    for step in range(steps):
        for part in range(accumulate):
            with nullcontext() if part == accumulate - 1 else model.no_sync():
                value = loss(model, accumulate * step + part)
                value.backward()
        results += [value.detach(), *gradients_of(model)]
        trained.step()
        trained.zero_grad()
    inner = getattr(model, "module", model)
    return [*results, *(tensor.detach().clone() for tensor in (*inner.parameters(), *inner.buffers()))]


def gradients_of(model: Any) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def signal_loss(model: Any, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    result: torch.Tensor = model(torch.randn(4, 2, 9, generator=generator, dtype=torch.float64)).pow(2).mean()
    return result


def replicas(**options: Any) -> tuple[Any, Any]:
    """A model that the recipe compiles, and one in DistributedDataParallel; each rank begins with other values."""
    model = Layers(seed=dist.get_rank(), **options)
    twin = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)
    return thunder.compile(model, "ddp", without=EAGER, bucket_cap_mb=0.0001), twin


def ddp_equals_pytorch(dtype: str, optimizer: str) -> None:
    compiled, twin = replicas(dtype=DTYPES[dtype])
    assert_equal(*(steps_of(model, optimizer, steps=STEPS) for model in (compiled, twin)))


def ddp_accumulates_without_synchronization() -> None:
    compiled, twin = replicas()
    assert_equal(steps_of(compiled, accumulate=3), steps_of(twin, accumulate=3))
    assert thunder.cache_misses(compiled) == 2


def ddp_broadcasts_buffers() -> None:
    model = Normalized(seed=dist.get_rank())
    twin = DistributedDataParallel(copy.deepcopy(model))
    compiled = thunder.compile(model, "ddp", without=EAGER)
    assert_equal(steps_of(compiled, loss=signal_loss), steps_of(twin, loss=signal_loss))
    forward = list(collectives_of(thunder.last_traces(compiled)[-1]))
    assert [(one.kind, one.bytes) for one in forward] == [("broadcast", 8 * 6), ("broadcast", 8)]


def reductions_of(compiled: Any) -> list[Collective]:
    """The collectives of the latest backward."""
    return list(collectives_of(thunder.last_backward_traces(compiled)[-1]))


def ddp_reduces_buckets_early_and_waits_late() -> None:
    model = Layers(layers=4)
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad} - {*model.unused.parameters()}
    compiled = thunder.compile(model, "ddp", without=EAGER, bucket_cap_mb=0.0005)
    loss_of(compiled, 0).backward()
    backward = thunder.last_backward_traces(compiled)[-1].bound_symbols
    starts = [place for place, bsym in enumerate(backward) if "all_reduce" in bsym.symbol.name]
    waits = [place for place, bsym in enumerate(backward) if bsym.symbol.target is FUNCTIONAL.wait_tensor.default]
    assert 1 < len(starts) == len(waits) < len(trained)
    assert starts[0] < len(backward) / 2
    assert min(waits) > max(starts)
    assert sum(one.bytes for one in reductions_of(compiled)) == sum(8 * one.numel() for one in trained)


def ddp_without_synchronization_has_no_collective() -> None:
    compiled = thunder.compile(Layers(), "ddp", without=EAGER)
    with compiled.no_sync():
        loss_of(compiled, 0).backward()
    assert reductions_of(compiled) == [] == list(collectives_of(thunder.last_traces(compiled)[-1]))
    loss_of(compiled, 0).backward()
    assert [one.kind for one in reductions_of(compiled)] == ["all_reduce"]
    with compiled.no_sync():
        loss_of(compiled, 1).backward()
    assert thunder.cache_misses(compiled) == 2


def ddp_reduces_in_a_group_of_its_own() -> None:
    group = dist.new_group([0, 1])
    compiled = thunder.compile(Layers(), "ddp", without=EAGER, process_group=group.group_name)
    loss_of(compiled, 0).backward()
    assert {one.group for one in reductions_of(compiled)} == {group.group_name}


def ddp_refuses_writes_to_parameters() -> None:
    with pytest.raises(OperationFailed, match="writes to the parameter"):
        thunder.compile(Clipping(), "ddp", without=EAGER)(torch.ones(3)).sum().backward()


def assert_close(actual: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
    """Assert that tensors differ by rounding alone: regions and recomputation add in another order."""
    for value, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=tolerance, atol=tolerance)


def ddp_with_activation_checkpoints() -> None:
    model = Layers(seed=dist.get_rank())
    twin = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)
    compiled = thunder.compile(model, ["max-memory-saving", "ddp"], without=EAGER)
    assert_equal(steps_of(compiled), steps_of(twin))


def ddp_with_inductor() -> None:
    compiled = thunder.compile(Normalized(seed=dist.get_rank()), "ddp", bucket_cap_mb=0.00005)
    twin = DistributedDataParallel(Normalized())
    for model in (compiled, twin):
        signal_loss(model, 0).backward()
    assert_close(gradients_of(compiled), gradients_of(twin), 1e-12)
    assert len(reductions_of(compiled)) > 1
    assert_takes_gradients_outside_of_regions(compiled, "take_into_flat")


def assert_takes_gradients_outside_of_regions(compiled: Any, operator: str) -> None:
    """Assert that no region has the operator, which changes `.grad`: a CUDA graph would not repeat that."""
    bsyms = thunder.last_backward_traces(compiled)[-1].bound_symbols
    assert any(operator in bsym.symbol.name for bsym in bsyms)
    assert not any(operator in part.symbol.name for bsym in bsyms for part in bsym.subsymbols)


def llama() -> Any:
    config = LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, use_cache=False, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def llama_loss(model: Any, step: int) -> torch.Tensor:
    batch = tokens(step, dist.get_rank())
    result: torch.Tensor = model(input_ids=batch, labels=batch).loss
    return result


def ddp_with_llama() -> None:
    compiled = thunder.compile(llama(), ["hf-llama3", "ddp"], without=EAGER)
    assert_close(steps_of(compiled, loss=llama_loss), steps_of(DistributedDataParallel(llama()), loss=llama_loss), 1e-5)


def ddp_in_a_whole_step_averages_in_eager() -> None:
    """A whole training step that is compiled would average nothing, so eager PyTorch makes the step."""
    model = thunder.compile(Layers(seed=0), "ddp", without=EAGER)
    replicated = DistributedDataParallel(Layers(seed=0), find_unused_parameters=True)
    loss_of(replicated, 0).backward()
    with pytest.warns(UserWarning, match="in eager PyTorch"):
        thunder.jit(lambda: loss_of(model, 0).backward())()
    assert_close(
        [parameter.grad for parameter in model.parameters()],
        [parameter.grad for parameter in replicated.parameters()],
        1e-6,
    )
