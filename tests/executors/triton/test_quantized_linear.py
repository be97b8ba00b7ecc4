"""Products with weights of 8 and 4 bits against PyTorch's operations in float64."""

from __future__ import annotations

import pytest
import torch

from tests.executors.triton.closeness import DTYPES, assert_close, draw
from thunder_core.backend.quantization import products
from thunder_core.backend.quantization.integers import pack, quantize_groups, quantize_rows
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.products.split_sums import steps_of_part
from thunder_executors.triton.quantized_linear import FEW, TILES, int4_linear, int8_linear

ROWS = (1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65, 70)
ODD = ((1, 1), (5, 15), (33, 37), (64, 64), (65, 257), (130, 600))  # columns and depth
GROUPED = ((1, 16, 1), (31, 64, 1), (65, 96, 3), (63, 60, 3), (64, 96, 2), (100, 320, 5), (5, 300, 1), (2, 9, 3))


def of_8_bits(columns: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    return quantize_rows(draw(columns, depth, seed=1))


def of_4_bits(columns: int, depth: int, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scales = quantize_groups(draw(columns, depth, seed=1) + 0.3, depth // groups)
    return pack(codes), scales


@pytest.mark.parametrize("rows", ROWS)
def test_every_number_of_rows(rows: int) -> None:
    for columns, depth in ODD[2:5:2]:
        x, weight = draw(rows, depth, dtype=torch.bfloat16), of_8_bits(columns, depth)
        assert_close(int8_linear(x, *weight, tile=tile_for(rows)), products.int8_product(x.double(), *weight))
    for columns, depth, groups in GROUPED[2:4]:
        x, weight = draw(rows, depth, dtype=torch.bfloat16), of_4_bits(columns, depth, groups)
        assert_close(int4_linear(x, *weight, tile_for(rows)), products.int4_product(x.double(), *weight))


def tile_for(rows: int) -> int:
    return FEW if rows <= FEW else TILES[-1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("columns", "depth"), ODD)
def test_odd_sizes_of_8_bits(columns: int, depth: int, tile: int, dtype: torch.dtype) -> None:
    x, weight = draw(3, depth, dtype=dtype), of_8_bits(columns, depth)
    found = int8_linear(x, *weight, tile=tile)
    assert found.dtype == dtype
    assert_close(found, products.int8_product(x.double(), *weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("columns", "depth", "groups"), GROUPED)
def test_odd_sizes_of_4_bits(columns: int, depth: int, groups: int, tile: int, dtype: torch.dtype) -> None:
    x, weight = draw(3, depth, dtype=dtype), of_4_bits(columns, depth, groups)
    found = int4_linear(x, *weight, tile)
    assert found.dtype == dtype
    assert_close(found, products.int4_product(x.double(), *weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_factors_of_columns_are_multiplied_in_the_kernel(dtype: torch.dtype) -> None:
    x, weight, factors = draw(3, 37, dtype=dtype), of_8_bits(9, 37), draw(37, seed=2).exp2().bfloat16()
    expected = products.int8_product((x * factors.to(dtype)).double(), *weight)
    assert_close(int8_linear(x, *weight, factors), expected)


def test_codes_of_both_signs_and_all_values() -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8).view(2, 128)
    x = draw(1, 128, dtype=torch.bfloat16)
    assert_close(int8_linear(x, codes, torch.ones(2).bfloat16()), x.double() @ codes.double().t())
    codes = torch.arange(64 * 16).view(64, 16).remainder(16).to(torch.uint8)
    weight = pack(codes), torch.tensor([1.0, 0.0]).expand(1, 64, 2).bfloat16()
    x = draw(1, 16, dtype=torch.bfloat16)
    assert_close(int4_linear(x, *weight), x.double() @ (codes.double() - 8).t())


def test_a_long_weight_is_divided_and_a_wide_weight_is_not() -> None:
    """One row times 2048 x 2048 keeps a Hopper GPU busy only in parts; 8 bits read 128 numbers in a step."""
    x, codes, scales = draw(1, 2048), torch.zeros(2048, 2048, dtype=torch.int8), torch.ones(2048)
    first, second = int8_linear.launches(x, codes, scales)
    assert first.grid == (32, 1, 8)
    assert second.kernel.fn.__name__ == "sum_of_parts_kernel"
    (only,) = int8_linear.launches(x, codes, scales, None, TILES[-1])
    assert only.grid == (16, 1, 1)
    wide = torch.zeros(32768, 256, dtype=torch.int8)
    assert len(int8_linear.launches(x[:, :256], wide, torch.ones(32768))) == 1
    assert [steps_of_part(tiles, 16) for tiles in (1, 32, 100, 1000)] == [2, 2, 8, 16]


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)], ids=str)
def test_empty(shape: tuple[int, int]) -> None:
    x = draw(*shape, dtype=torch.bfloat16)
    weight = torch.zeros(5, shape[1], dtype=torch.int8), torch.ones(5).bfloat16()
    assert torch.equal(int8_linear(x, *weight), torch.zeros(shape[0], 5).bfloat16())


def test_rows_with_gaps() -> None:
    storage = draw(6, 80, dtype=torch.bfloat16)
    for x in (storage[:, 8:40], storage[::2, :32], storage.t()[:32].t()):
        assert_close(int8_linear(x, *(weight := of_8_bits(7, 32))), products.int8_product(x.double(), *weight))
        assert_close(int4_linear(x, *(weight := of_4_bits(7, 32, 2))), products.int4_product(x.double(), *weight))


def test_unsupported_inputs_are_refused() -> None:
    codes, scales = of_8_bits(4, 8)
    for arguments in (
        (draw(2, 9), codes, scales),
        (draw(2, 8), codes, scales[:3]),
        (draw(2, 8), codes, scales, None, 17),
        (draw(2, 8), codes, scales, draw(7)),
    ):
        with pytest.raises(KernelRefuses, match="a product with quantized weights got"):
            int8_linear(*arguments)
    codes, scales = of_4_bits(4, 32, 2)
    for arguments in ((draw(2, 16), codes, scales), (draw(2, 32), codes.to(torch.int8), scales)):
        with pytest.raises(KernelRefuses, match="a product with quantized weights got"):
            int4_linear(*arguments)
