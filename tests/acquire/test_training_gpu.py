"""Whole training steps on a GPU: the backward runs in the tracing thread during tracing, and results match eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import thunder_core as thunder

pytestmark = pytest.mark.gpu


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize(
    ("kind", "options"),
    [("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {"fused": True}), ("AdamW", {"capturable": True})],
)
def test_optimizers_match_eager_bit_by_bit(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8)).cuda()]
    models.append(copy.deepcopy(models[0]))
    ours, eager = ((model, getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)) for model in models)
    x, compiled = torch.randn(4, 8, device="cuda"), thunder.jit(step)
    for _ in range(4):
        torch.testing.assert_close(compiled(*ours, x), step(*eager, x), rtol=0, atol=0)
    torch.testing.assert_close(list(ours[0].parameters()), list(eager[0].parameters()), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 2


def test_fused_optimizer_skips_steps_that_overflow() -> None:
    def scaled(model: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    torch.manual_seed(0)
    models = [nn.Linear(8, 8).cuda()]
    models.append(copy.deepcopy(models[0]))
    ours, eager = (
        (model, torch.optim.AdamW(model.parameters(), fused=True), torch.amp.GradScaler("cuda", growth_interval=2))
        for model in models
    )
    x, compiled = torch.randn(4, 8, device="cuda"), thunder.jit(scaled)
    for number in range(5):
        given = x * torch.inf if number == 2 else x
        torch.testing.assert_close(compiled(*ours, given), scaled(*eager, given), rtol=0, atol=0, equal_nan=True)
        assert ours[2].get_scale() == eager[2].get_scale()
    torch.testing.assert_close(list(ours[0].parameters()), list(eager[0].parameters()), rtol=0, atol=0)
