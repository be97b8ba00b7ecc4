"""Programs whose gradients were wrong because tensors were recorded with wrong layouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import CvtConfig, CvtForImageClassification
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention

import thunder_core as thunder
from thunder_core.compilation.compiler import last_backward_reason
from thunder_core.workflow.validation.layouts import check_layouts


class ConvolutionalProjection(nn.Module):
    """Applies a depthwise convolution with a norm to tokens, reshaped to an image and back: transformers' CvT."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.norm = nn.BatchNorm2d(8).eval()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        image = x.permute(0, 2, 1).view(1, 8, 4, 4)
        return self.linear(self.norm(self.convolution(image)).view(1, 8, 16).permute(0, 2, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_through_a_view_with_a_batch_of_one_match_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = ConvolutionalProjection().to(dtype)
    compiled = thunder.jit(module)
    x = torch.randn(1, 16, 8, dtype=dtype, requires_grad=True)
    wanted = [x, *module.parameters()]
    result = module(x)
    direction = torch.randn_like(result)
    eager = torch.autograd.grad(result, wanted, direction)
    with check_layouts() as watch:
        ours = torch.autograd.grad(compiled(x), wanted, direction)
    assert last_backward_reason(compiled) == ""
    assert watch.mismatches == []
    torch.testing.assert_close(ours, eager)


def test_strides_that_a_program_reads_are_the_actual_strides() -> None:
    def looking(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        y = x.permute(0, 2, 1).view(1, 8, 4, 4)
        return y, y.stride()

    y, strides = thunder.jit(looking)(torch.randn(1, 16, 8))
    assert y.stride() == strides == (8, 1, 32, 8)


def test_transformers_cvt_trains_as_in_eager() -> None:
    torch.manual_seed(0)
    sizes = {"embed_dim": [8, 16], "num_heads": [1, 2], "depth": [1, 2], "patch_sizes": [7, 3], "patch_stride": [4, 2]}
    rest = {"cls_token": [False, True], "mlp_ratio": [2.0, 2.0], "drop_path_rate": [0.0, 0.1], "patch_padding": [2, 1]}
    each = ("attention_drop_rate", "drop_rate", "qkv_bias", "qkv_projection_method", "kernel_qkv", "padding_kv")
    each = (*each, "stride_kv", "padding_q", "stride_q")
    model = CvtForImageClassification(
        CvtConfig(**sizes, **rest, **{name: CvtConfig().to_dict()[name][:2] for name in each})
    )
    model = model.double()
    image = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    compiled = thunder.jit(model)

    def step(run: Callable[..., ImageClassifierOutputWithNoAttention]) -> list[Tensor]:
        torch.manual_seed(1)
        out = run(image, labels=torch.tensor([1]))
        assert out.loss is not None
        return [out.logits, *torch.autograd.grad(out.loss, list(model.parameters()))]

    with check_layouts(exactly=True) as watch:
        torch.testing.assert_close(step(compiled), step(model.train()))
        assert last_backward_reason(compiled) == ""
        model.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(image).logits, model(image).logits)
    assert watch.mismatches == []
