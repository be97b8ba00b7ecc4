"""Rotary embedding with the writes into a static cache, against Hugging Face's own rotation and PyTorch's writes."""

from __future__ import annotations

import pytest
import torch

from tests.executors.triton.closeness import DTYPES, assert_close, draw, wide
from tests.executors.triton.test_rotary import heads, tables
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.cached_rotary import reference, rotary_into_cache

PLACES = 9


def inputs(shape: tuple[int, ...], dtype: torch.dtype, start: int) -> tuple[torch.Tensor, ...]:
    batches, q_heads, k_heads, positions, width = shape
    q = heads(batches, q_heads, positions, width, dtype=dtype, seed=0)
    k, v = (heads(batches, k_heads, positions, width, dtype=dtype, seed=seed) for seed in (1, 2))
    caches = (draw(batches, k_heads, PLACES, width, dtype=dtype, seed=seed) for seed in (3, 4))
    return (q, k, v, *tables(1, positions, width, dtype), *caches, torch.tensor(start))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [0, 2, 6])
@pytest.mark.parametrize("shape", [(2, 4, 2, 3, 8), (1, 11, 1, 2, 6), (1, 1, 1, 1, 2), (1, 2, 9, 1, 100)], ids=str)
def test_queries_and_caches(shape: tuple[int, ...], start: int, dtype: torch.dtype) -> None:
    arguments = inputs(shape, dtype, start)
    expected = [wide(argument).clone() for argument in arguments]
    turned = reference(*expected)
    found = rotary_into_cache(*arguments)
    assert_close(found, turned)
    assert found.transpose(1, 2).is_contiguous()
    for cache, wanted in zip(arguments[5:7], expected[5:7], strict=True):
        assert_close(cache, wanted)


def test_only_the_places_of_the_new_tokens_are_written() -> None:
    arguments = inputs((1, 2, 1, 2, 4), torch.float32, 3)
    before = [cache.clone() for cache in arguments[5:7]]
    rotary_into_cache(*arguments)
    for cache, old in zip(arguments[5:7], before, strict=True):
        assert (cache != old).any(dim=(0, 1, 3)).nonzero().flatten().tolist() == [3, 4]


@pytest.mark.parametrize("start", [-1, 8, PLACES, 2**40])
def test_a_place_outside_of_the_cache_gives_nan_and_writes_nothing_there(start: int) -> None:
    arguments = inputs((1, 3, 2, 2, 6), torch.float32, start)
    whole = [torch.full((1, 2, PLACES + 4, 6), 7.0) for _ in range(2)]
    caches = [each[:, :, 2:-2] for each in whole]
    found = rotary_into_cache(*arguments[:5], *caches, arguments[-1])
    outside = [not 0 <= start + position < PLACES for position in range(2)]
    assert found.isnan().all(-1).all(1)[0].tolist() == outside
    for each in whole:
        assert (each[:, :, :2] == 7).all()
        assert (each[:, :, -2:] == 7).all()
        assert (each != 7).any() == (not all(outside))


def test_each_sequence_may_have_separate_angles_and_caches_may_have_gaps() -> None:
    q, k, v, _, _, *_ = inputs((2, 3, 2, 2, 4), torch.float32, 0)
    cos, sin = draw(2, 2, 4, seed=5), draw(2, 2, 4, seed=6)
    storages = [draw(2, PLACES, 2, 8, seed=seed) for seed in (7, 8)]
    caches = [storage[..., :4].transpose(1, 2) for storage in storages]
    expected = [storage.clone()[..., :4].transpose(1, 2) for storage in storages]
    start = torch.tensor(4)
    assert_close(rotary_into_cache(q, k, v, cos, sin, *caches, start), reference(q, k, v, cos, sin, *expected, start))
    for cache, wanted in zip(caches, expected, strict=True):
        assert_close(cache, wanted)


def test_writes_count_for_autograd_and_fake_tensors() -> None:
    arguments = inputs((1, 2, 1, 1, 4), torch.float32, 0)
    versions = [cache._version for cache in arguments[5:7]]
    rotary_into_cache(*arguments)
    assert [cache._version for cache in arguments[5:7]] == [version + 1 for version in versions]


def test_unsupported_inputs_are_refused() -> None:
    q, k, v, cos, sin, keys, values, start = inputs((1, 2, 1, 2, 4), torch.float32, 0)
    for arguments in (
        (q, k, v[:, :, :1], cos, sin, keys, values, start),
        (q, k, v, cos, sin, keys.half(), values, start),
        (q, k, v, cos, sin, keys, values[..., :2], start),
        (q, k, v, cos, sin, keys, values, start.int()),
        (q, k, v, cos, sin, keys, values, start.view(1)),
    ):
        with pytest.raises(KernelRefuses, match="rotary embedding with a cache got"):
            rotary_into_cache(*arguments)
