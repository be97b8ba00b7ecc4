"""Attention on the CPU runs the packed kernel: its values are PyTorch's for all shapes, masks and layouts."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import thunder_core as thunder
from tests.executors.packed_heads import EXECUTORS, SHAPES, attend, claimed_in, heads, in_double
from thunder_executors.packed_attention import EXECUTOR

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


def assert_attention(query, key, value, mask=None, compiled=None, **options):
    """Check that attention is at most twice as far from float64 as PyTorch's, plus some ulps; return it."""
    compiled = compiled or thunder.jit(attend, executors=EXECUTORS)
    with torch.no_grad():
        found = compiled(query, key, value, mask, **options)
        eager = attend(query, key, value, mask, **options)
        exact = in_double(query, key, value, mask, **options)
    assert len(claimed_in(compiled)) == 1
    assert (found.shape, found.stride(), found.dtype) == (eager.shape, eager.stride(), eager.dtype)
    if found.numel():
        assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max() + 2e-6 * exact.abs().max()
    return found


MASKS = {
    "none": lambda batch, heads, rows, keys: None,
    "boolean": lambda batch, heads, rows, keys: torch.rand(batch, 1, rows, keys) > 0.3,
    "boolean of keys": lambda batch, heads, rows, keys: torch.rand(batch, 1, 1, keys) > 0.3,
    "boolean of all": lambda batch, heads, rows, keys: (torch.rand(batch, 1, 1, keys) > 0.3).expand(-1, -1, rows, -1),
    "float": lambda batch, heads, rows, keys: torch.randn(rows, keys),
    "float of heads": lambda batch, heads, rows, keys: torch.randn(batch, heads, rows, keys),
    "float of rows": lambda batch, heads, rows, keys: torch.randn(heads, rows, 1),
    "transposed": lambda batch, heads, rows, keys: torch.randn(keys, rows).t(),
    "with gaps": lambda batch, heads, rows, keys: torch.randn(rows, 2 * keys)[:, ::2],
    "with infinities": lambda batch, heads, rows, keys: torch.randn(rows, keys).masked_fill(
        torch.rand(rows, keys) > 0.7, -math.inf
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_of_every_shape_and_mask_matches_pytorch(shape):
    torch.manual_seed(0)
    batch, count, rows, keys, width, value_width = shape
    compiled = thunder.jit(attend, executors=EXECUTORS, cache="no caching")
    for mask in MASKS.values():
        tensors = 2 * heads(batch, count, rows, width), heads(batch, count, keys, width)
        assert_attention(
            *tensors, heads(batch, count, keys, value_width), mask(batch, count, rows, keys), compiled=compiled
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_causal_attention_matches_pytorch(shape):
    torch.manual_seed(0)
    batch, count, rows, keys, width, value_width = shape
    for lengths in ((rows, keys), (keys, rows), (keys, keys)):
        query, key = (heads(batch, count, length, width) for length in lengths)
        assert_attention(2 * query, key, heads(batch, count, lengths[1], value_width), is_causal=True)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("mask", ["none", "boolean", "float of heads"])
def test_groups_of_queries_share_keys_and_values(groups, mask):
    torch.manual_seed(0)
    query, key, value = heads(2, 6, 40, 16), heads(2, groups, 50, 16), heads(2, groups, 50, 16)
    assert_attention(query, key, value, MASKS[mask](2, 6, 40, 50), enable_gqa=True)
    assert_attention(query, key, value, is_causal=True, enable_gqa=True)


def repeat(x, repeats):
    """Repeat each head, as models of transformers do for attention with a mask."""
    batch, groups, keys, width = x.shape
    return x[:, :, None, :, :].expand(batch, groups, repeats, keys, width).reshape(batch, groups * repeats, keys, width)


def test_repeated_keys_and_values_are_read_without_the_copies():
    torch.manual_seed(0)

    def function(query, key, value, mask):
        return attend(query, repeat(key, 3), repeat(value, 3), mask)

    tensors = heads(2, 6, 40, 16), heads(2, 2, 50, 16), heads(2, 2, 50, 16), torch.rand(2, 1, 40, 50) > 0.3
    compiled = thunder.jit(function, executors=EXECUTORS)
    found = compiled(*tensors)
    torch.testing.assert_close(found, function(*tensors), rtol=1e-4, atol=1e-5)
    assert found.stride() == function(*tensors).stride()
    (call,) = claimed_in(compiled)
    assert len(call.subsymbols) == 7
    assert [bsym.symbol.name for bsym in thunder.last_traces(compiled)[-1].bound_symbols if not bsym.executor] == []


def test_copies_of_keys_that_are_read_elsewhere_are_made():
    def written(query, key, value):
        keys, values = repeat(key, 3), repeat(value, 3)
        key.add_(1)
        return attend(query, keys, values)

    def returned(query, key, value):
        keys = repeat(key, 3)
        return attend(query, keys, repeat(value, 3)), keys

    for function in (written, returned):
        tensors = heads(2, 6, 40, 16), heads(2, 2, 50, 16), heads(2, 2, 50, 16)
        expected = function(*(tensor.clone() for tensor in tensors))
        compiled = thunder.jit(function, executors=EXECUTORS)
        torch.testing.assert_close(compiled(*tensors), expected, rtol=1e-4, atol=1e-5)
        names = [bsym.symbol.name for bsym in thunder.last_traces(compiled)[-1].bound_symbols]
        assert names.count("torch.Tensor.reshape") == 2
        assert len(claimed_in(compiled)) == 1


@pytest.mark.parametrize("scale", [0.0, 1, 0.3, -0.5])
def test_scores_are_scaled(scale):
    assert_attention(heads(1, 2, 20, 16), heads(1, 2, 30, 16), heads(1, 2, 30, 16), scale=scale)


LAYOUTS = {
    "contiguous": lambda rows: torch.randn(2, 3, rows, 16),
    "of heads": lambda rows: heads(2, 3, rows, 16),
    "part of a product": lambda rows: torch.randn(2, rows, 9, 16)[:, :, 3:6].transpose(1, 2),
    "gaps in rows": lambda rows: torch.randn(2, 3, rows, 40)[..., 8:24],
    "rows first": lambda rows: torch.randn(rows, 2, 3, 16).permute(1, 2, 0, 3),
    "expanded": lambda rows: torch.randn(1, 1, rows, 16).expand(2, 3, -1, -1),
    "unaligned": lambda rows: torch.randn(2 * 3 * rows * 16 + 1)[1:].view(2, 3, rows, 16),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_are_read_where_they_are(name):
    torch.manual_seed(0)
    query, key, value = LAYOUTS[name](33), LAYOUTS[name](40), LAYOUTS[name](40)
    assert_attention(query, key, value)


@pytest.mark.parametrize("width", [8, 16, 128, 256])
def test_rows_that_collide_in_the_cache_are_copied(width):
    torch.manual_seed(0)
    count = 1024 // width
    tensors = (heads(1, count, rows, width) for rows in (40, 70, 70))
    assert_attention(*tensors, is_causal=True)


def test_three_dimensions_are_taken():
    torch.manual_seed(0)
    tensors = [torch.randn(3, rows, 16) for rows in (20, 30, 30)]
    assert_attention(*tensors)
    assert_attention(*tensors, torch.rand(20, 30) > 0.5)
    assert_attention(*tensors, is_causal=True)


@pytest.mark.parametrize("sizes", [(0, 2, 5, 7), (2, 2, 0, 7), (2, 2, 5, 0), (2, 2, 40, 0)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_empty_tensors_are_taken(sizes, is_causal):
    batch, count, rows, keys = sizes
    tensors = heads(batch, count, rows, 16), heads(batch, count, keys, 16), heads(batch, count, keys, 16)
    found = assert_attention(*tensors, is_causal=is_causal)
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("kind", ["boolean", "float"])
def test_rows_that_a_mask_hides_are_zeros(kind):
    mask = torch.rand(40, 300) > 0.5
    mask[7], mask[39], mask[5, :290] = False, False, False
    if kind == "float":
        mask = torch.zeros(40, 300).masked_fill(~mask, -math.inf)
    query, key, value = heads(1, 2, 40, 16), heads(1, 2, 300, 16), heads(1, 2, 300, 16)
    found = assert_attention(query, key, value, mask)
    for row in (7, 39):
        assert torch.equal(found[:, :, row], torch.zeros(1, 2, 16))


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("keys", [20, 600])
def test_infinite_and_missing_numbers_count_as_in_pytorch(number, keys):
    torch.manual_seed(0)
    for index in range(4):
        tensors = [heads(1, 2, 20, 16), heads(1, 2, keys, 16), heads(1, 2, keys, 16), torch.randn(20, keys)]
        tensors[index][..., 3, 5] = number
        found = thunder.jit(attend, executors=EXECUTORS)(*tensors)
        torch.testing.assert_close(found, in_double(*tensors).float(), equal_nan=True, rtol=1e-4, atol=1e-4)


def test_large_scores_do_not_overflow():
    query, key, value = 1e3 * heads(1, 2, 40, 16), 1e3 * heads(1, 2, 300, 16), heads(1, 2, 300, 16)
    exact = in_double(query, key, value)
    found = thunder.jit(attend, executors=EXECUTORS)(query, key, value)
    torch.testing.assert_close(found, exact.float(), rtol=1e-3, atol=1e-3)


def test_a_missing_key_behind_a_causal_mask_does_not_count():
    query, key, value = heads(1, 2, 40, 16), heads(1, 2, 40, 16), heads(1, 2, 40, 16)
    key[:, :, 39] = math.nan
    found = thunder.jit(attend, executors=EXECUTORS)(query, key, value, is_causal=True)
    torch.testing.assert_close(found[:, :, :39], attend(query, key, value, is_causal=True)[:, :, :39])
    assert found[:, :, 39].isnan().all()


def test_arguments_by_position_and_attention_of_a_tensor_to_itself_are_claimed():
    x = heads(1, 2, 20, 16)
    compiled = thunder.jit(lambda x: scaled_dot_product_attention(x, x, x, None, 0.0, True), executors=EXECUTORS)
    torch.testing.assert_close(compiled(x), attend(x, x, x, is_causal=True))
    assert len(claimed_in(compiled)) == 1


OTHERS = {
    "dropout": lambda q, k, v: scaled_dot_product_attention(q, k, v, dropout_p=1.0),
    "double": lambda q, k, v: scaled_dot_product_attention(q.double(), k.double(), v.double()),
    "bfloat16": lambda q, k, v: scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()),
    "two dimensions": lambda q, k, v: scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0]),
    "broadcast heads": lambda q, k, v: scaled_dot_product_attention(q, k[:, :1], v[:, :1]),
    "broadcast batch": lambda q, k, v: scaled_dot_product_attention(q, k[:1], v[:1]),
    "width in steps": lambda q, k, v: scaled_dot_product_attention(q[..., ::2], k[..., ::2], v[..., ::2]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_is_left_to_others(name):
    tensors = heads(2, 2, 20, 16), heads(2, 2, 30, 16), heads(2, 2, 30, 16)
    compiled = thunder.jit(OTHERS[name], executors=EXECUTORS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*tensors), OTHERS[name](*tensors), equal_nan=True)
    assert claimed_in(compiled) == []
