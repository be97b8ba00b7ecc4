"""Additions by several threads: deterministic if requested, and in two-dimensional tiles to the right elements."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder


def folded(x, weight, bias):
    normalized = functional.group_norm(x, 1, weight, bias).contiguous()
    return functional.fold(normalized.reshape(x.shape[0], -1, 1), (2, 2), (2, 2), stride=(2, 2))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("channels", [256, 64, 33])
def test_patches_are_folded_as_in_eager(channels, threads):
    x = torch.randn(2, channels, 4, 1)
    x = torch.empty_strided(x.shape, (4 * channels, 1, channels, channels)).copy_(x)
    weight, bias = torch.randn(channels), torch.randn(channels)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        compiled = thunder.jit(folded, executors=("inductor", "torch"))
        with torch.no_grad():
            found, expected = compiled(x, weight, bias), folded(x, weight, bias)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert any(bsym.executor == "inductor" for bsym in thunder.last_traces(compiled)[-1].bound_symbols)


def sum_by_index(x, index):
    return torch.zeros(16).index_put((index,), x, accumulate=True) * 2


def test_deterministic_algorithms_use_no_cached_kernel_whose_sums_differ_from_run_to_run():
    x, index = torch.randn(200_000), torch.randint(0, 16, (200_000,))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        usual = thunder.jit(sum_by_index, executors=("inductor", "torch"))
        usual(x, index)
        torch.use_deterministic_algorithms(True)
        for compiled in (usual, thunder.jit(sum_by_index, executors=("inductor", "torch"))):
            assert all(torch.equal(compiled(x, index), sum_by_index(x, index)) for _ in range(20))
            assert not any(bsym.executor == "inductor" for bsym in thunder.last_traces(compiled)[-1].bound_symbols)
        torch.use_deterministic_algorithms(False)
        again = thunder.jit(sum_by_index, executors=("inductor", "torch"))
        again(x, index)
        assert any(bsym.executor == "inductor" for bsym in thunder.last_traces(again)[-1].bound_symbols)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
