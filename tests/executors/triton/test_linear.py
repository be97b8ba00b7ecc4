"""Linear layers by the kernels against PyTorch in float64: every kind of tile, sizes that fill none, and epilogues."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.executors.triton.closeness import DTYPES, assert_close, assert_forward, draw
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.launch import INTERPRETED
from thunder_executors.triton.measurement import milliseconds
from thunder_executors.triton.products.linear import ACTIVATIONS, linear
from thunder_executors.triton.products.linear_products import (
    TILES,
    VECTORS,
    linear_by_cublas_lt,
    linear_by_rows,
    name_of,
    tiles_for,
)

SMALL = {"vector": (1, 8, 64, 4, 0), "few rows": (16, 16, 32, 4, 2), "many rows": (32, 16, 16, 4, 2)}


def operands(rows: int, depth: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, ...]:
    x, weight = draw(rows, depth, dtype=dtype), draw(columns, depth, dtype=dtype, seed=1)
    return x, weight, draw(columns, dtype=dtype, seed=2), draw(rows, columns, dtype=dtype, seed=3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tile", SMALL.values(), ids=list(SMALL))
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 1, 1), (3, 37, 5), (16, 64, 16), (17, 100, 33)])
def test_sizes_that_fill_tiles_or_not(rows: int, depth: int, columns: int, tile: Any, dtype: torch.dtype) -> None:
    x, weight, bias, residual = operands(rows, depth, columns, dtype)
    assert_forward(linear, x, weight, None, None, "", tile)
    assert_forward(linear, x, weight, bias, residual, "", tile)


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 15, 17, 40])
@pytest.mark.parametrize("tile", SMALL.values(), ids=list(SMALL))
def test_every_number_of_rows(rows: int, tile: Any) -> None:
    x, weight, bias, residual = operands(rows, 70, 20)
    assert_forward(linear, x, weight, bias, residual, "", tile)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("tile", SMALL.values(), ids=list(SMALL))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_activation_is_computed_with_the_product(activation: str, tile: Any, dtype: torch.dtype) -> None:
    x, weight, bias, residual = operands(3, 40, 20, dtype)
    assert_forward(linear, x, weight, bias, None, activation, tile)
    assert_forward(linear, x, weight, None, residual, activation, tile)


@pytest.mark.parametrize("tile", [SMALL["vector"], SMALL["few rows"]], ids=["vector", "few rows"])
def test_the_kernel_that_adds_parts_computes_the_epilogue(tile: Any) -> None:
    """A long row is divided. The bias, the activation and the residual are those of the sum of all parts."""
    x, weight, bias, residual = operands(3, 512, 9)
    first, second = linear.launches(x, weight, bias, residual, "gelu", tile)
    assert first.grid[2] > 1
    assert second.kernel.fn.__name__ == "sum_of_parts_kernel"
    assert first.arguments["bias"] is first.arguments["residual"] is None
    assert_forward(linear, x, weight, bias, residual, "gelu", tile)
    assert_forward(linear, x, weight, bias, residual.repeat(1, 2)[:, 4:13], "", tile)


def test_wide_products_are_not_divided() -> None:
    x, weight, *_ = operands(1, 64, 8192)
    assert [len(linear.launches(x, weight, None, None, "", tile)) for tile in (*VECTORS, (16, 16, 16, 4, 2))] == [1] * 4


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("tile", SMALL.values(), ids=list(SMALL))
def test_values_are_rounded_as_by_separate_operations(dtype: torch.dtype, tile: Any) -> None:
    """With a weight of the identity, a product is one number: every rounding is visible."""
    x, residual = draw(5, 32, dtype=dtype), draw(5, 32, dtype=dtype, seed=1)
    found = linear(x, torch.eye(32, dtype=dtype), None, residual, "relu", tile)
    assert torch.equal(found, x.relu() + residual)


@pytest.mark.parametrize("tile", SMALL.values(), ids=list(SMALL))
def test_inputs_of_any_shape_with_gaps(tile: Any) -> None:
    wide = draw(2, 3, 40, dtype=torch.bfloat16)
    weight, residual = draw(7, 60, dtype=torch.bfloat16, seed=1)[:, 3:35], draw(3, 3, 20, dtype=torch.bfloat16, seed=2)
    for x in (wide[..., 4:36], wide[:, ::2, :32], wide.transpose(0, 1)[..., :32]):
        shape = (*x.shape[:-1], 7)
        assert_forward(linear, x, weight, None, residual[: shape[0], : shape[1], 5:12].expand(shape), "", tile)
    assert linear(wide[:0, :, :32], weight, None, None, "", tile).shape == (0, 3, 7)


@pytest.mark.parametrize("tile", SMALL.values(), ids=list(SMALL))
def test_a_result_does_not_change_from_run_to_run(tile: Any) -> None:
    args = (*operands(5, 600, 9), "silu", tile)
    assert torch.equal(linear(*args), linear(*args))


def test_not_a_number_stays() -> None:
    x, weight, *_ = operands(2, 20, 5)
    x[0, 3] = float("nan")
    for tile in SMALL.values():
        found = linear(x, weight, None, None, "relu", tile)
        assert found[0].isnan().all()
        assert found[1].isfinite().all()


def test_cublas_lt_multiplies_as_pytorch() -> None:
    x, weight, *_ = operands(6, 40, 9, torch.float32)
    assert_close(linear_by_cublas_lt(x.view(2, 3, 40), weight), (x.double() @ weight.double().t()).view(2, 3, 9))


def test_each_call_runs_the_choice_for_its_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = draw(9, 40, seed=1), draw(9, seed=2)
    choices = ((4, SMALL["vector"]), (16, ""), (64, SMALL["many rows"]))
    tiles: list[Any] = []
    launcher = linear.launcher
    for rows in (1, 4, 5, 17, 70):
        x = draw(rows, 40)
        expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
        assert_close(linear_by_rows(x, weight, bias, choices), expected)
        with monkeypatch.context() as patch:
            patch.setattr(
                "thunder_executors.triton.products.linear_products.linear",
                lambda *args: (tiles.append(args[-1]), launcher(*args))[1],
            )
            linear_by_rows(x, weight, bias, choices)
    assert tiles == [SMALL["vector"], SMALL["vector"], SMALL["many rows"], SMALL["many rows"]]


def test_tiles_depend_on_the_rows_and_on_the_dtype() -> None:
    assert list(tiles_for(1, torch.float32).values()) == list(tiles_for(1, torch.bfloat16).values()) == [*VECTORS]
    assert set(tiles_for(4, torch.bfloat16).values()) == {*VECTORS, *TILES[16]}
    assert tiles_for(5, torch.float32) == {}
    assert (128, 256, 64, 8, 3) not in tiles_for(2048, torch.float16, "gelu").values()
    assert list(tiles_for(2048, torch.float16).values())[-1] == (128, 256, 64, 8, 3)
    assert name_of((64, 128, 64, 4, 3)) == "triton 64 x 128 x 64, 4 warps, 3 stages"
    assert name_of(VECTORS[0]) == "triton 1 x 4 x 1024, 4 warps"


def test_unsupported_inputs_are_refused() -> None:
    x, weight, bias, residual = operands(2, 16, 4)
    tile = SMALL["vector"]
    refused: list[tuple[Any, ...]] = [
        (x, weight[:, :8], None, None, "", tile),
        (x, weight.half(), None, None, "", tile),
        (x, draw(16, 4, dtype=torch.bfloat16).t(), None, None, "", tile),
        (x, weight, bias[:3], None, "", tile),
        (x, weight, None, residual[:1], "", tile),
    ]
    for arguments in refused:
        with pytest.raises(KernelRefuses, match="a linear layer got"):
            linear(*arguments)
    with pytest.raises(KernelRefuses, match="the activation 'tanh'"):
        linear(x, weight, None, None, "tanh", tile)
    for odd in ((), (1, 3, 64, 4, 0), (8, 16, 16, 4, 2), (16, 8, 16, 4, 2), (0, 4, 64, 4, 0)):
        with pytest.raises(KernelRefuses, match="the tile"):
            linear(x, weight, None, None, "", odd)


SIZES = {"output": (2048, 2048), "down": (8192, 2048), "logits": (2048, 128256)}


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rows", [1, 4, 16, 128, 2048])
@pytest.mark.parametrize(("depth", "columns"), SIZES.values(), ids=list(SIZES))
def test_every_tile_runs_on_a_gpu_also_in_a_graph(rows: int, depth: int, columns: int) -> None:
    """The weights of a Llama of 1B parameters; times are printed, with the L2 cache cleared before each call."""
    x, weight, _, residual = (tensor.cuda() for tensor in operands(rows, depth, columns))
    expected = torch.nn.functional.linear(x, weight).float() + residual.float()
    times = {"PyTorch": milliseconds(lambda: torch.nn.functional.linear(x, weight))}
    for name, tile in tiles_for(rows, x.dtype).items():
        found = linear(x, weight, None, residual, "", tile)
        assert (found.float() - expected).abs().max() <= 2**-6 * expected.abs().max()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = linear(x, weight, None, residual, "", tile)
        graph.replay()
        assert torch.equal(captured, found)
        times[name] = milliseconds(partial(linear, x, weight, None, residual, "", tile))
    times["cuBLASLt"] = milliseconds(lambda: linear_by_cublas_lt(x, weight))
    print(rows, depth, columns, times)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rows", [1, 4, 16, 300, 2048])
def test_a_gpu_measures_all_implementations_and_runs_the_fastest(
    rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path))
    model = torch.nn.Linear(2048, 2048, bias=False, dtype=torch.bfloat16, device="cuda")
    x = operands(rows, 2048, 1)[0].cuda()
    compiled = thunder.jit(model, executors=["triton", "torch"])
    with tuning(60.0), torch.no_grad():
        found, expected = compiled(x).float(), model(x).float()
    assert (found - expected).abs().max() <= 2**-6 * expected.abs().max()
    trace = thunder.last_traces(compiled)[-1]
    texts = [*(item.choice for item in trace.chosen), *(item.reason for item in trace.refused)]
    (text,) = (text for text in texts if f"{rows} x 2048 to 2048 in bfloat16" in text)
    assert text.count(" ms") == len(tiles_for(rows, x.dtype)) + 2  # cuBLASLt and PyTorch
    print(text)
