"""A model that branches on a single query has a separate program for one query, but not for a batch of one."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder

HEADS, WIDTH = 4, 8
SHAPES = ((2, 12), (2, 1), (1, 1), (3, 1), (1, 5), (4, 2))  # batches and lengths


class Attention(torch.nn.Module):
    """Attention with a bias that branches on the number of queries, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.biases = torch.nn.Embedding(16, HEADS)
        self.output = torch.nn.Linear(HEADS * WIDTH, HEADS * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[:2]
        heads = [part.view(batch, length, HEADS, WIDTH).transpose(1, 2) for part in self.projection(x).chunk(3, -1)]
        places = torch.arange(length)
        bias = self.biases((places[:, None] - places).abs() % 16).permute(2, 0, 1)[None]
        mask = torch.ones(batch, 1, length, length, dtype=torch.bool).tril()
        bias = torch.where(mask, bias, -1e9) if length > 1 else bias.expand(batch, -1, -1, -1)
        attended = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=bias.contiguous())
        return self.output(attended.transpose(1, 2).reshape(batch, length, -1))


@pytest.mark.parametrize("training", [False, True])
def test_batch_of_one_shares_the_programs_of_one_and_several_queries(training: bool) -> None:
    torch.manual_seed(0)
    module = Attention()
    compiled = thunder.jit(module, cache="symbolic values", executors=["torch"])
    for batch, length in SHAPES:
        x = torch.randn(batch, length, HEADS * WIDTH, requires_grad=training)
        with torch.set_grad_enabled(training):
            found, expected = compiled(x), module(x)
        torch.testing.assert_close(found, expected)
        if training:
            gradients = [
                torch.autograd.grad(result.square().sum(), [x, *module.parameters()]) for result in (found, expected)
            ]
            torch.testing.assert_close(*gradients)
        assert not thunder.last_program(compiled).constant_because
        assert not thunder.last_backward_reason(compiled) or not training
    assert thunder.cache_misses(compiled) == 2, thunder.recompile_reasons(compiled)


def test_is_contiguous_is_decided_by_the_sizes_of_the_call() -> None:
    def signed(x: torch.Tensor) -> torch.Tensor:
        turned = x.t() * 1
        return turned if turned.is_contiguous() else -turned

    compiled = thunder.jit(signed, cache="symbolic values", executors=["torch"])
    for shape in ((3, 4), (1, 4), (4, 1), (5, 6), (1, 1), (7, 1)):
        x = torch.randn(shape)
        assert torch.equal(compiled(x), signed(x)), shape
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) <= 4, thunder.recompile_reasons(compiled)
