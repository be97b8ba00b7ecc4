"""Products with quantized weights of every width, which kernels read in whole vectors."""

from __future__ import annotations

import pytest
import torch

from thunder_core.backend.quantization.products import int8_product, integer_product

COLUMNS = (1, 6, 7, 8, 9, 15, 16, 31, 33, 40, 48, 63, 64, 96, 100, 257)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("columns", COLUMNS)
def test_product_with_codes_of_8_bits(columns: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(columns)
    for count, rows in ((1, 5), (3, 8), (2, 1), (16, 33), (17, 4)):
        x = torch.randn(count, columns, generator=generator).to(dtype)
        codes = torch.randint(-127, 128, (rows, columns), generator=generator, dtype=torch.int8)
        scales = torch.rand(rows, generator=generator).bfloat16()
        expected = (x.double() @ codes.double().t()) * scales.double()
        found = int8_product(x, codes, scales)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())


@pytest.mark.parametrize("columns", COLUMNS)
def test_exact_product_of_integers(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    for count, rows in ((1, 5), (3, 8), (2, 1), (17, 4)):
        x, codes = (
            torch.randint(-127, 128, (n, columns), generator=generator, dtype=torch.int8) for n in (count, rows)
        )
        assert torch.equal(integer_product(x, codes).long(), x.long() @ codes.long().t())
