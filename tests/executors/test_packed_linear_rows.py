"""Linear layers of some rows run the packed kernel, which multiplies only these rows; the other rows are zeros."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import thunder_core as thunder
from tests.executors.packed_layers import KERNEL
from thunder_core.passes.transforms.padding import LeaveOutPadding
from thunder_executors.packed_linear import EXECUTOR
from thunder_executors.prepacked_linear import PrepackedLinear

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


class Attending(nn.Module):
    """Attention with a mask, and a linear layer with an activation, in the module of this file."""

    def __init__(self, bias: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(24, 40, bias=bias), nn.Linear(40, 24, bias=bias)

    def forward(self, h, mask):
        h = self.second(functional.gelu(self.first(h)))
        heads = h[:, :, None].transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads, mask[:, None, None])[:, :, 0]


Attending.__module__ = "tests.executors.packed_layers"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", [KERNEL, PrepackedLinear(measures=False)])
def test_kernel_multiplies_the_rows_that_are_read(kernel, bias: bool) -> None:
    model, h = Attending(bias).eval(), torch.randn(2, 9, 24)
    compiled = thunder.jit(model, transforms=(LeaveOutPadding(),), executors=(kernel, "torch"))
    with torch.no_grad():
        for length in (9, 4, 1):
            mask = torch.arange(9)[None] < torch.tensor([length, 7])[:, None]
            torch.testing.assert_close(compiled(h, mask), model(h, mask))
    claimed = [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == kernel.name]
    assert len(claimed) == 2
    assert len(claimed[0].operations) == 2  # the layer and its activation
    assert thunder.cache_misses(compiled) == 1
