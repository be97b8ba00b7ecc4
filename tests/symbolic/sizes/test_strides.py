"""Strides that do not follow from the sizes, such as those of slices, are symbols if they differ between calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import thunder_core as thunder

LENGTHS = (9, 12, 5, 30, 4, 12)  # lengths of the tensors that are sliced
Program = Callable[[torch.Tensor], torch.Tensor]
PROGRAMS: dict[str, Program] = {
    "element by element": lambda x: (x + 1).transpose(1, 2),
    "cat": lambda x: torch.cat([x, x[:, :, :1]], 2),
    "reshape": lambda x: x.reshape(x.shape[0], -1) * 2,
    "contiguous": lambda x: x.contiguous().view(x.shape[0], -1) * 2,
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "a reduction": lambda x: x.sum(2),
    "a view": lambda x: x[:, :, 1:].transpose(1, 2) * x[:, :1, :3].transpose(1, 2),
}


def last_four(batch: int, length: int, *, requires_grad: bool = False) -> torch.Tensor:
    """Return the last four of this many rows of two heads."""
    return torch.randn(batch, 2, length, 3, requires_grad=requires_grad)[:, :, -4:]


@pytest.mark.parametrize("name", PROGRAMS)
def test_slices_of_all_lengths_need_one_more_program(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], symbolic=["x.size(0)"], executors=["torch"])
    for index, length in enumerate(LENGTHS):
        x = last_four(2 + index % 3, length)
        found, expected = compiled(x), PROGRAMS[name](x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) <= 3, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_slices_of_all_lengths_match_eager(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], symbolic=["x.size(0)"], executors=["torch"])
    for index, length in enumerate(LENGTHS[:4]):
        x = last_four(2 + index % 3, length, requires_grad=True)
        gradients = [torch.autograd.grad(run(x).square().sum(), x)[0] for run in (compiled, PROGRAMS[name])]
        torch.testing.assert_close(*gradients)
        assert not thunder.last_backward_reason(compiled)
    assert thunder.cache_misses(compiled) <= 3, thunder.recompile_reasons(compiled)


def test_stride_that_is_read_is_the_stride_of_the_call() -> None:
    compiled = thunder.jit(lambda x: x * x.stride(1), symbolic=["x.size(0)"], executors=["torch"])
    for index, length in enumerate(LENGTHS):
        x = last_four(2 + index % 3, length)
        assert torch.equal(compiled(x), x * x.stride(1))


def test_overlapping_or_reordered_strides_are_refused_by_the_program() -> None:
    compiled = thunder.jit(lambda x: x * 2, symbolic=["x.size(0)"], executors=["torch"])
    memory = torch.randn(200)
    for strides in ((40, 20, 3, 1), (60, 30, 3, 1), (24, 6, 3, 1), (3, 60, 12, 1), (1, 2, 3, 60), (50, 25, 3, 1)):
        x = memory.as_strided((2, 2, 4, 3), strides)
        found = compiled(x)
        assert torch.equal(found, x * 2)
        assert found.stride() == (x * 2).stride(), strides


ASKING: dict[str, Program] = {
    "a copy": lambda x: x.permute(2, 1, 0).contiguous(),
    "a product": lambda x: (x * x.permute(2, 1, 0).permute(2, 1, 0)).permute(0, 2, 1).exp(),
    "a sum with a number": lambda x: (x.permute(1, 2, 0).permute(0, 2, 1).exp()) + x.sum(),
    "one like another": lambda x: torch.zeros_like(x.transpose(0, 2)),
    "a slice": lambda x: x.permute(1, 2, 0)[1:].exp() if x.shape[1] > 1 else x,
    "a reduction": lambda x: x.permute(1, 2, 0).exp().sum(0, keepdim=True),
}


@pytest.mark.parametrize("name", ASKING)
def test_strides_of_results_match_eager_for_sizes_of_one(name: str) -> None:
    def asking(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        return x * 1, ASKING[name](x).stride()

    compiled = thunder.jit(asking, cache="symbolic values", executors=["torch"])
    for shape in ((2, 3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1), (1, 1, 4), (3, 1, 1), (1, 1, 1), (5, 2, 2), (6, 7, 8)):
        x = torch.randn(shape)
        assert compiled(x)[1] == asking(x)[1], shape
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) <= 9, thunder.recompile_reasons(compiled)
