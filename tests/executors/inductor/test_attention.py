"""The backward of attention as matrix products: its gradients are those of PyTorch's own kernel, also in regions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_executors.inductor.attention import KERNEL, attention_backward

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "groups", "length", "positions", "causal", "masked"),
    [
        (8, 8, 24, 24, True, False),
        (8, 4, 16, 16, True, False),
        (4, 4, 8, 20, False, True),
        (8, 2, 12, 12, False, False),
    ],
)
def test_gradients_match_the_kernel(heads, groups, length, positions, causal, masked, dtype):
    torch.manual_seed(0)
    query = torch.randn(2, heads, length, 32).to(dtype)
    key, value = (torch.randn(2, groups, positions, 32).to(dtype) for _ in range(2))
    mask = torch.randn(2, 1, length, positions).to(dtype) if masked else None
    out, logsumexp = FORWARD(query, key, value, 0.0, causal, attn_mask=mask)
    arguments = (torch.randn_like(out), query, key, value, out, logsumexp, 0.0, causal)
    for ours, theirs in zip(
        attention_backward(*arguments, attn_mask=mask), KERNEL(*arguments, attn_mask=mask), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_rows_that_see_nothing_have_no_gradient():
    query, key, value = (torch.randn(1, 2, 8, 16).bfloat16() for _ in range(3))
    mask = torch.zeros(1, 1, 8, 8).bfloat16()
    mask[:, :, 3] = -torch.inf
    out, logsumexp = FORWARD(query, key, value, attn_mask=mask)
    gradients = attention_backward(torch.ones_like(out), query, key, value, out, logsumexp, 0.0, False, attn_mask=mask)
    assert not any(gradient.isnan().any() for gradient in gradients)
    assert not gradients[0][:, :, 3].any()


def test_attention_runs_in_a_region():
    def attend(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(1, 16, 4, 8).transpose(1, 2)
        out = functional.scaled_dot_product_attention(heads.sin(), heads.cos(), heads, is_causal=True)
        return functional.silu(out.transpose(1, 2).reshape(1, 16, 32)) * x

    x = torch.randn(1, 16, 32).bfloat16().requires_grad_(True)
    compiled = thunder.jit(attend, executors=("inductor", "torch"))
    (ours,) = torch.autograd.grad(compiled(x).sum(), [x])
    (theirs,) = torch.autograd.grad(attend(x).sum(), [x])
    torch.testing.assert_close(ours, theirs, rtol=4e-2, atol=4e-2)
    backward = thunder.last_backward_traces(compiled)[-1]
    inside = [part.symbol.short_name for line in backward.bound_symbols for part in line.subsymbols]
    assert "default" in inside
    assert not any("flash_attention" in line.symbol.name for line in backward.bound_symbols)
