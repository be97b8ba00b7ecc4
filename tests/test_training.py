"""Every family trains for five steps with eager's losses and gradients and a compiled backward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.families import FAMILIES, gradients_of, inputs_for, sample
from thunder_core.compilation.compiler import last_program

STEPS = 5


def trained(model: torch.nn.Module, run: Any, inputs: dict[str, Any]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses of some steps of SGD, and the gradients of the last one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = run(**inputs).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients_of(model)


@pytest.mark.parametrize("name", FAMILIES)
def test_five_steps_are_eagers(name: str) -> None:
    model = sample(name).model.train()
    inputs = inputs_for(sample(name), labels=True)
    twin = copy.deepcopy(model)
    compiled = thunder.jit(model)
    losses, gradients = trained(model, compiled, inputs)
    expected, wanted = trained(twin, twin, inputs)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == wanted.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, wanted[key], rtol=1e-4, atol=1e-5, msg=lambda told, key=key: f"{key}: {told}"
        )
    assert thunder.cache_misses(compiled) <= 2  # ViT stores its type of problem in its config, which the program reads
    assert last_program(compiled).no_backward_reason == ""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_five_steps_with_fused_regions(dtype: str) -> None:
    model = sample("llama", dtype).model.train()
    inputs = inputs_for(sample("llama", dtype), labels=True)
    twin = copy.deepcopy(model)
    losses, _ = trained(model, thunder.jit(model, executors=("inductor", "torch")), inputs)
    expected, _ = trained(twin, twin, inputs)
    assert losses == pytest.approx(expected, rel=1e-5 if dtype == "float32" else 2e-2)
    assert losses[-1] < losses[0]
