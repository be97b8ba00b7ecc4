"""Random programs have eager's results, gradients and views for every choice of gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.runtime.programs import program
from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.ir.symbol import BoundSymbol

PROGRAMS = 80


class FusesNothing(FusionExecutor):
    """An executor that makes the backward recompute, like fusing executors, and leaves all lines to eager PyTorch."""

    name = "nothing"
    claims = "nothing"

    def fuses(self, bsym: BoundSymbol) -> bool:
        return False

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        return [Refusal("it fuses nothing") for _ in regions]


def used(run: Callable[..., Any], seed: int, second: bool) -> list[Any]:
    """The results of a program, the bases of views, and the gradients of some results with respect to some inputs."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(4, 4, generator=generator) for _ in range(3)]
    for leaf in leaves[: draw.randrange(1, 4)]:
        leaf.requires_grad_(True)
    inputs = [leaf * 1 if draw.random() < 0.3 else leaf for leaf in leaves]
    torch.manual_seed(seed)
    results = run(*inputs)
    chosen = [result for result in results if result.requires_grad and draw.random() < 0.7]
    if not chosen:
        return [*results, [result.requires_grad for result in results]]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    loss = sum(result.square().mean() for result in chosen)
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True, create_graph=second)
    found = [
        *results,
        [result.requires_grad for result in results],
        [result._is_view() for result in results],
        *gradients,
    ]
    connected = [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
    if second and connected:
        try:
            found += torch.autograd.grad(sum(gradient.sin().sum() for gradient in connected), wanted, allow_unused=True)
        except RuntimeError as error:  # attention on the CPU has no second derivative
            found.append(str(error))
    return found


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs(seed: int) -> None:
    run = program(seed)
    executors = (FusesNothing(), "torch") if seed % 2 else ("torch",)
    compiled = thunder.jit(run, executors=executors)
    expected = used(run, seed, second=seed % 3 == 0)
    for _ in range(2):
        found = used(compiled, seed, second=seed % 3 == 0)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            if isinstance(theirs, torch.Tensor):
                torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=1e-5)
            else:
                assert ours == theirs
