"""Deferred tensors compute the same results as converted tensors, and hold no memory of their own."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import embedding, linear

from thunder_core.backend.claiming import deferred_tensor
from thunder_core.backend.claiming.check import perturb
from thunder_core.backend.claiming.deferred_tensor import DeferredTensor, defer, has_same_values, small_tensors
from thunder_core.backend.claiming.double_precision import in_float64

WEIGHT = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))  # 2 MiB
ROWS = torch.randn(3, 1024, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

READS = {
    "linear": lambda weight: linear(ROWS, weight),
    "product with a transposed view": lambda weight: ROWS @ weight.t(),
    "views of views": lambda weight: weight.view(8, 64, 1024)[3].transpose(0, 1).sum(0),
    "parts": lambda weight: torch.stack([part.mean() for part in weight.chunk(4)]),
    "embedding": lambda weight: embedding(torch.tensor([5, 7]), weight),
    "another dtype": lambda weight: weight.to(torch.float16).float(),
    "bytes": lambda weight: weight.view(torch.int64) & 7,
    "expanded": lambda weight: weight[0].expand(2, 1024) * 2,
}


@pytest.mark.parametrize("read", READS)
def test_operation_on_deferred_tensor_matches_the_converted_tensor(read):
    found = READS[read](defer(WEIGHT, in_float64))
    expected = READS[read](in_float64(WEIGHT))
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert torch.equal(found, expected)


def test_views_are_deferred_and_hold_the_memory_of_the_source():
    wide = defer(WEIGHT, in_float64)
    view = wide.t()[3:]
    assert isinstance(wide, DeferredTensor)
    assert isinstance(view, DeferredTensor)
    assert view.source.untyped_storage().data_ptr() == WEIGHT.untyped_storage().data_ptr()


def test_gradient_of_deferred_parameter_matches_the_converted_parameter():
    plain = torch.nn.Parameter(in_float64(WEIGHT))
    wide = torch.nn.Parameter(defer(WEIGHT, in_float64))
    for parameter in (plain, wide):
        linear(ROWS, parameter).square().sum().backward()
    assert torch.equal(wide.grad, plain.grad)


def test_small_tensors_and_integers_are_converted_at_once():
    assert type(defer(torch.ones(4), in_float64)) is torch.Tensor
    counts = torch.ones(1 << 20, dtype=torch.int64)
    assert defer(counts, in_float64) is counts


def test_write_to_deferred_tensor_is_refused():
    with pytest.raises(RuntimeError, match="writes to a tensor that is deferred"):
        defer(WEIGHT, in_float64).mul_(2)


def test_same_source_and_function_have_the_same_values():
    wide = defer(WEIGHT, in_float64)
    assert has_same_values(wide, defer(WEIGHT, in_float64))
    assert not has_same_values(wide, defer(WEIGHT, perturb))
    assert not has_same_values(wide, defer(WEIGHT.clone(), in_float64))
    assert not has_same_values(wide.t(), wide)


def test_perturbed_values_are_a_unit_in_the_last_place_away_in_any_layout():
    for value in (WEIGHT, WEIGHT.t()):
        ratio = perturb(value) / in_float64(value)
        unit = torch.finfo(torch.float32).eps
        assert set(((ratio - 1) / unit).round().unique().tolist()) == {-1.0, 1.0}


PRODUCTS = {
    "linear": lambda weight: linear(ROWS, weight),
    "linear with a bias": lambda weight: linear(ROWS, weight, torch.arange(512.0, dtype=torch.float64)),
    "sum with a matrix": lambda weight: torch.addmm(torch.ones(3, 512, dtype=torch.float64), ROWS, weight.t()),
    "sum with a scaled number": lambda weight: torch.addmm(ROWS[:1, :1], ROWS, weight.t(), beta=0.5, alpha=2),
    "product with rows in batches": lambda weight: linear(ROWS.view(3, 1, 1024), weight),
    "product with the weight itself": lambda weight: ROWS[:, :512] @ weight,
    "embedding": lambda weight: embedding(torch.tensor([[5, 7], [7, 511]]), weight),
    "rows by their places": lambda weight: weight.index_select(0, torch.tensor([3, 500])),
}


@pytest.mark.parametrize("read", PRODUCTS)
def test_large_weight_is_converted_in_parts(read, monkeypatch):
    converted = []

    def in_parts(value):
        converted.append(value.numel())
        return in_float64(value)

    monkeypatch.setattr(deferred_tensor, "PART_BYTES", 1 << 18)
    found, expected = PRODUCTS[read](defer(WEIGHT, in_parts)), PRODUCTS[read](in_float64(WEIGHT))
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-11)
    real = [count for count in converted if count != WEIGHT.numel()]
    assert real
    assert max(real) * 8 <= 1 << 18


def test_only_the_smallest_tensors_are_copied_at_once(monkeypatch):
    monkeypatch.setattr(deferred_tensor, "MIN_DEFERRED", 100)
    monkeypatch.setattr(deferred_tensor, "SMALL_BYTES", 150)
    assert small_tensors({"a": 60, "b": 100, "c": 10, "d": 90}) == {"a", "c"}
    assert small_tensors({"b": 100}) == small_tensors({}) == frozenset()


def test_product_with_a_bias_without_dimensions_is_computed_by_columns() -> None:
    weight, rows, bias = torch.randn(1024, 8192), torch.randn(2, 1024).double(), torch.tensor(1.0).double()
    deferred = DeferredTensor(weight, torch.Tensor.double)
    torch.testing.assert_close(torch.addmm(bias, rows, deferred), torch.addmm(bias, rows, weight.double()))
