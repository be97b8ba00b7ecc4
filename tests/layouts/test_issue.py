"""Programs whose gradients were wrong, because tensors were recorded in other layouts than they had."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.compiler import last_backward_reason
from thunder_core.run.layouts import layouts_watched


class ConvolutionalProjection(nn.Module):
    """Tokens to an image, a depthwise convolution with a norm, and back: transformers' CvT."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.norm = nn.BatchNorm2d(8).eval()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        image = x.permute(0, 2, 1).view(1, 8, 4, 4)
        return self.linear(self.norm(self.convolution(image)).view(1, 8, 16).permute(0, 2, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_behind_a_view_with_a_batch_of_one(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = ConvolutionalProjection().to(dtype)
    compiled = thunder.jit(module)
    x = torch.randn(1, 16, 8, dtype=dtype, requires_grad=True)
    wanted = [x, *module.parameters()]
    result = module(x)
    direction = torch.randn_like(result)
    eager = torch.autograd.grad(result, wanted, direction)
    with layouts_watched() as watch:
        ours = torch.autograd.grad(compiled(x), wanted, direction)
    assert last_backward_reason(compiled) == ""
    assert watch.mismatches == []
    torch.testing.assert_close(ours, eager)


def test_strides_that_a_program_asks_for_are_those_that_it_gets() -> None:
    def looking(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        y = x.permute(0, 2, 1).view(1, 8, 4, 4)
        return y, y.stride()

    y, strides = thunder.jit(looking)(torch.randn(1, 16, 8))
    assert y.stride() == strides == (8, 1, 32, 8)
