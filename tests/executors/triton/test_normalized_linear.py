"""Products of normalized rows against PyTorch in float64: widths that fill no tile, rows, residuals and dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.executors.triton.closeness import DTYPES, assert_close, assert_forward, draw
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.joined import joined_linear
from thunder_executors.triton.gated import ACTIVATIONS, gated
from thunder_executors.triton.measurement import milliseconds
from thunder_executors.triton.norm_products import norm_linear, norm_swiglu
from thunder_executors.triton.normalized_linear import THREAD_BLOCKS, normalized_gated, normalized_linear, width_of
from thunder_executors.triton.rms_norm import add_rms_norm

EPS = 1e-5


def operands(
    depth: int, *columns: int, rows: tuple[int, ...] = (1, 1), residual: bool = True, **options: Any
) -> list[Any]:
    x, other = draw(*rows, depth, **options), draw(*rows, depth, seed=1, **options)
    matrices = [draw(number, depth, seed=3 + index, **options) for index, number in enumerate(columns)]
    return [x, other if residual else None, draw(depth, seed=2, **options), EPS, *matrices]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("residual", [True, False], ids=["residual", "none"])
@pytest.mark.parametrize("depth", [1, 37, 64, 2500])
def test_products(depth: int, residual: bool, dtype: torch.dtype) -> None:
    args = operands(depth, 9, 5, 6, residual=residual, dtype=dtype)
    for count in (1, 2, 3):
        assert_forward(normalized_linear, *args[: 4 + count])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("residual", [True, False], ids=["residual", "none"])
@pytest.mark.parametrize("depth", [37, 64, 2500])
def test_gated_products(depth: int, residual: bool, dtype: torch.dtype) -> None:
    assert_forward(normalized_gated, *operands(depth, 9, 9, residual=residual, dtype=dtype))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    assert_forward(normalized_gated, *operands(40, 6, 6), activation)


@pytest.mark.parametrize("rows", [(4,), (2, 3), (0, 2)], ids=str)
def test_several_rows_and_none(rows: tuple[int, ...]) -> None:
    assert_forward(normalized_linear, *operands(20, 5, 3, rows=rows))
    assert_forward(normalized_gated, *operands(20, 5, 5, rows=rows))


def test_rows_with_gaps_and_no_weight_of_the_norm() -> None:
    x, residual, _, eps, first = operands(24, 5, rows=(3,))
    wide = draw(8, 40, seed=9)
    assert_forward(normalized_linear, x[:, 2:20], residual[:, 4:22], None, eps, wide[::2, 3:21], first[:, 1:19])


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_values_are_rounded_as_by_separate_operations(dtype: torch.dtype) -> None:
    """With a weight of the identity, a product is one number: every rounding is visible."""
    x, residual, weight, eps = operands(48, dtype=dtype)
    identity = torch.eye(48, dtype=dtype)
    normal, total = add_rms_norm(x, residual, weight, eps)
    product, sums = normalized_linear(x, residual, weight, eps, identity)
    assert torch.equal(product, normal)
    assert torch.equal(sums, total)
    result, _ = normalized_gated(x, residual, weight, eps, identity, identity)
    assert torch.equal(result, gated(normal, normal))


def test_a_program_has_fewer_columns_if_there_are_few() -> None:
    assert [width_of(1, columns) for columns in (16 * THREAD_BLOCKS, 8 * THREAD_BLOCKS, 40)] == [16, 8, 4]
    assert width_of(4, 4 * THREAD_BLOCKS) == 16


def test_a_result_does_not_change_from_run_to_run_and_is_independent_of_other_weights() -> None:
    args = operands(200, 7, 5)
    first = normalized_linear(*args)
    assert all(map(torch.equal, first, normalized_linear(*args)))
    assert_close(normalized_linear(*args[:5])[0], first[0].double())


def test_unsupported_inputs_are_refused() -> None:
    x, residual, weight, eps, first, second = operands(16, 4, 6)
    refused: list[tuple[Any, ...]] = [
        (x, residual[..., :8], weight, eps, first),
        (x, residual, weight[:8], eps, first),
        (x, residual, weight, eps, first[:, :8]),
        (x, residual, weight, eps, first.half()),
        (x, residual, weight, eps, draw(16, 4).t()),
    ]
    for arguments in refused:
        with pytest.raises(KernelRefuses, match="products of a normalized row"):
            normalized_linear(*arguments)
    with pytest.raises(KernelRefuses, match="cannot be combined"):
        normalized_gated(x, residual, weight, eps, first, second)
    with pytest.raises(KernelRefuses, match="cannot be combined by 'relu'"):
        normalized_gated(x, residual, weight, eps, first, first, "relu")


SIZES = {"queries, keys and values": (2048, 512, 512), "gate and up": (8192, 8192)}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("columns", SIZES.values(), ids=list(SIZES))
def test_a_gpu_computes_a_token_faster_than_by_separate_operations_also_in_a_graph(columns: tuple[int, ...]) -> None:
    """The weights of a Llama of 1B parameters; the L2 cache is cleared before each call."""
    x, residual, weight, _, *matrices = [
        value.cuda() if isinstance(value, torch.Tensor) else value
        for value in operands(2048, *columns, dtype=torch.bfloat16)
    ]
    operation, function = (normalized_linear, norm_linear) if len(columns) == 3 else (normalized_gated, norm_swiglu)

    def separate() -> Any:
        normal, total = add_rms_norm(x, residual, weight, EPS)
        products = joined_linear(normal, *matrices)
        return [*(products if len(columns) == 3 else [gated(*products)]), total]

    found = function(x, residual, weight, EPS, *matrices)
    expected = operation.reference(
        x.double(), residual.double(), weight.double(), EPS, *map(torch.Tensor.double, matrices)
    )
    for actual, wanted in zip(found, expected, strict=True):
        assert_close(actual, wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = function(x, residual, weight, EPS, *matrices)
    graph.replay()
    assert all(map(torch.equal, captured, found))
    fused = milliseconds(lambda: function(x, residual, weight, EPS, *matrices))
    assert fused < milliseconds(separate)
