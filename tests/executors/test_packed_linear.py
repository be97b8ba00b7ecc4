"""Linear layers on the CPU run the packed kernel: its values are PyTorch's for all shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import thunder_core as thunder
from tests.executors.packed_layers import EXECUTORS, Layer, claimed_in, in_double
from thunder_executors.packed_linear import EXECUTOR

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


def assert_product(function, x, weight, bias=None) -> None:
    """Check that a product is at most twice as far from float64 as PyTorch's product, plus some ulps."""
    compiled = thunder.jit(function, executors=EXECUTORS)
    with torch.no_grad():
        found, eager, exact = compiled(x, weight, bias), function(x, weight, bias), in_double(x, weight, bias)
    assert len(claimed_in(compiled)) == 1
    assert (found.shape, found.stride(), found.dtype) == (eager.shape, eager.stride(), eager.dtype)
    allowed = 2 * (eager - exact).abs().max() + 1e-6 * exact.abs().max()
    assert (found - exact).abs().max() <= allowed


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 18, 23, 48, 101])
@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (7, 5), (16, 16), (33, 31), (64, 48), (100, 70)])
def test_product_of_every_edge_matches_pytorch(rows, depth, columns):
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)
    assert_product(linear, x, weight, bias)
    assert_product(lambda x, weight, bias: linear(x, weight), x, weight)


@pytest.mark.parametrize("rows", [1, 5, 40, 700])
@pytest.mark.parametrize("columns", [16, 41])
def test_deep_product_in_several_blocks_matches_pytorch(rows, columns):
    torch.manual_seed(rows)
    assert_product(linear, torch.randn(rows, 2500), torch.randn(columns, 2500), torch.randn(columns))


@pytest.mark.parametrize("shape", [(20,), (1, 20), (2, 3, 20), (3, 2, 5, 20), (1, 1, 20), (0, 20), (4, 0, 20)])
def test_every_number_of_dimensions_is_taken(shape):
    layer, x = Layer(20, 18), torch.randn(shape)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad():
        found, expected = compiled(x), layer(x)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)


INPUTS = {
    "every second row": lambda: torch.randn(40, 32)[::2],
    "part of a row": lambda: torch.randn(20, 96)[:, 32:64],
    "part of a batch": lambda: torch.randn(5, 6, 64)[:, :, :32],
    "expanded row": lambda: torch.randn(1, 32).expand(20, 32),
    "unaligned": lambda: torch.randn(20 * 32 + 1)[1:].view(20, 32),
}


@pytest.mark.parametrize("name", INPUTS)
def test_rows_with_gaps_are_read_without_a_copy(name):
    assert_product(linear, INPUTS[name](), torch.randn(24, 32), torch.randn(24))


@pytest.mark.parametrize("name", ["transposed", "swapped batch", "every second column"])
def test_input_in_another_order_is_left_to_others(name):
    x = {
        "transposed": torch.randn(32, 20).t(),
        "swapped batch": torch.randn(6, 5, 32).transpose(0, 1),
        "every second column": torch.randn(20, 64)[:, ::2],
    }[name]
    layer = Layer(32, 24)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
    assert claimed_in(compiled) == []


def test_weight_with_gaps_between_its_rows_is_read_without_a_copy():
    assert_product(linear, torch.randn(20, 32), torch.randn(24, 64)[:, 8:40], torch.randn(24))


def test_transposed_weight_is_left_to_others():
    compiled = thunder.jit(linear, executors=EXECUTORS)
    x, weight = torch.randn(20, 32), torch.randn(32, 24).t()
    torch.testing.assert_close(compiled(x, weight), linear(x, weight))
    assert claimed_in(compiled) == []


def test_a_tensor_times_itself_is_left_to_others():
    compiled = thunder.jit(lambda x: linear(x, x), executors=EXECUTORS)
    x = torch.randn(20, 20)
    torch.testing.assert_close(compiled(x), linear(x, x))
    assert claimed_in(compiled) == []


def test_infinite_and_missing_numbers_stay_in_their_rows_and_columns():
    x, weight = torch.randn(20, 32), torch.randn(37, 32)
    x[3, 5], x[7, 0], weight[36, 31] = float("inf"), float("nan"), float("-inf")
    for rows in (20, 8):
        found = thunder.jit(linear, executors=EXECUTORS)(x[:rows], weight)
        torch.testing.assert_close(found, linear(x[:rows], weight), equal_nan=True, rtol=1e-4, atol=1e-4)


def test_arguments_by_name_are_read():
    compiled = thunder.jit(lambda x, weight: linear(weight=weight, input=x), executors=EXECUTORS)
    x, weight = torch.randn(20, 32), torch.randn(24, 32)
    torch.testing.assert_close(compiled(x, weight), linear(x, weight))
    assert claimed_in(compiled)


def test_a_single_program_serves_every_number_of_rows():
    layer = Layer()
    compiled = thunder.jit(layer, executors=EXECUTORS, symbolic={"x.size(0)": (1, 64), "x.size(1)": (1, 64)})
    with torch.no_grad():
        for batch, length in ((3, 17), (1, 1), (2, 4), (5, 3), (64, 2), (1, 64), (7, 1)):
            x = torch.randn(batch, length, 48)
            torch.testing.assert_close(compiled(x), layer(x))
    assert len(claimed_in(compiled)) == 1
    assert thunder.cache_misses(compiled) == 1


def test_equal_layers_are_one_kernel():
    model = nn.Sequential(*[Layer(32, 32) for _ in range(4)])
    compiled = thunder.jit(model, executors=EXECUTORS)
    with torch.no_grad():
        compiled(torch.randn(20, 32))
    assert len(claimed_in(compiled)) == 4
    assert len({bsym.symbol for bsym in claimed_in(compiled)}) == 1


@pytest.mark.parametrize("rows", [1, 3, 12, 17, 64, 400])
def test_results_are_equal_bit_by_bit_for_every_number_of_threads(rows):
    layer, x = Layer(600, 200), torch.randn(rows, 600)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with torch.no_grad():
                results.append(compiled(x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], layer(x).detach())


def test_results_are_equal_bit_by_bit_from_call_to_call():
    layer, x = Layer(), torch.randn(20, 48)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad():
        assert torch.equal(compiled(x), compiled(x))
