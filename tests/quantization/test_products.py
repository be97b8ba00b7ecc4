"""Products with quantized weights of every width, which kernels read in whole vectors."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.quantization import products
from thunder_core.backend.quantization.input_rows import scale_rows
from thunder_core.backend.quantization.integers import LARGEST_CODE
from thunder_core.backend.quantization.layers import LayerSettings
from thunder_core.backend.quantization.linear import FP8Linear
from thunder_core.backend.quantization.products import fp8_product, int8_product, integer_product, multiplies_fp8
from thunder_core.compilation.compiler import trace_for

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


@pytest.mark.parametrize("columns", COLUMNS)
def test_exact_product_of_integers_within_the_sizes_of_gpus(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's function refuses up to 16 rows on a GPU, and other sizes that are no multiples of 8."""
    generator, multiply, shapes = torch.Generator().manual_seed(columns), torch._int_mm, []

    def checked(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        shapes.append((*x.shape, codes.shape[1]))
        assert x.shape[0] > 16
        assert not x.shape[1] % 8
        assert not codes.shape[1] % 8
        return multiply(x, codes)

    monkeypatch.setattr(torch, "_int_mm", checked)
    for count, rows in ((1, 5), (3, 8), (2, 1), (17, 4), (20, 24)):
        x, codes = (
            torch.randint(-127, 128, (n, columns), generator=generator, dtype=torch.int8) for n in (count, rows)
        )
        found = products.integer_product_on_gpu(x, codes)
        assert torch.equal(found.long(), x.long() @ codes.long().t())
    assert shapes[-1] == (20, columns + -columns % 8, 24)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 2, 0)])
def test_empty_product_of_integers(sizes: tuple[int, int, int]) -> None:
    count, columns, rows = sizes
    x, codes = torch.ones(count, columns, dtype=torch.int8), torch.ones(rows, columns, dtype=torch.int8)
    assert torch.equal(integer_product(x, codes), torch.zeros(count, rows, dtype=torch.int32))


@pytest.mark.parametrize(
    ("capability", "multiplies"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True)]
)
def test_gpu_without_instructions_for_8_bit_floats(
    capability: tuple[int, int], multiplies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    multiplies_fp8.cache_clear()
    assert multiplies_fp8(torch.device("cuda", 0)) is multiplies
    assert not multiplies_fp8(torch.device("cpu"))
    multiplies_fp8.cache_clear()


@pytest.mark.parametrize(
    ("count", "rows", "columns"), [(1, 16, 32), (5, 48, 16), (3, 24, 32), (2, 16, 40), (0, 16, 16)]
)
def test_product_with_8_bit_floats(count: int, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instructions of a GPU are called for the sizes that they take, and both ways give the same."""
    generator, largest = torch.Generator().manual_seed(count), LARGEST_CODE[torch.float8_e4m3fn]
    (x, row_scales), (weight, scales) = (
        scale_rows(torch.randn(n, columns, generator=generator), largest) for n in (count, rows)
    )
    codes, weight = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    scales = scales[:, 0].bfloat16()
    expected = (codes.double() @ weight.double().t()) * row_scales * scales.double()
    called = []

    def scaled_product(a, b, row_scale, column_scale, out_dtype):
        called.append((tuple(a.shape), tuple(b.shape)))
        return ((a.double() @ b.double()) * row_scale * column_scale).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_product)
    for has_instructions in (False, True):
        monkeypatch.setattr(products, "multiplies_fp8", lambda device, answer=has_instructions: answer)
        found = fp8_product(codes, row_scales, weight, scales)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)
    takes = count and not rows % 16 and not columns % 16
    assert called == ([((count, columns), (columns, rows))] if takes else [])


def test_layer_of_8_bit_floats_traced_for_a_gpu_decides_where_it_runs() -> None:
    """The program holds the operation, which asks the GPU that it runs on; the reference multiplies in float64."""
    for dtype, holds in ((torch.bfloat16, True), (torch.float32, True), (torch.float64, False)):
        layer = FP8Linear(torch.randn(32, 16), None, LayerSettings())
        with torch.no_grad():
            program, _ = trace_for(
                thunder.jit(layer, executors=("torch",)), torch.device("cuda"), (torch.randn(3, 16, dtype=dtype),), {}
            )
        names = {bsym.symbol.name for bsym in program.last("computation").bound_symbols}
        assert any("fp8_product" in name for name in names) is holds
        assert not any("_scaled_mm" in name for name in names)
