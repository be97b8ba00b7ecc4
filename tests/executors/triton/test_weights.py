"""Products with quantized weights are claimed where the kernel is measured to be faster; a GPU is replaced here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.executors.triton.closeness import assert_close, draw
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.backend.quantization.layers import LayerSettings
from thunder_core.backend.quantization.linear import Int4WeightOnlyLinear, Int8WeightOnlyLinear
from thunder_executors.triton import measurement
from thunder_executors.triton.launch import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for the interpreter")

LAYERS = {Int8WeightOnlyLinear: "int8_weight_product", Int4WeightOnlyLinear: "int4_weight_product"}


def layer_of(kind: Any, columns: int = 70, depth: int = 64) -> torch.nn.Module:
    return kind(draw(columns, depth), None, LayerSettings(group_size=32))  # type: ignore[no-any-return]


def run(layer: torch.nn.Module, rows: int, **options: Any) -> tuple[list[str], list[str]]:
    """The operations that run on the kernels, and the reasons why others do not. The result is checked."""
    compiled = thunder.jit(layer, executors=["triton", "torch"], **options)
    x = draw(rows, 64, dtype=torch.bfloat16, seed=1)
    with torch.no_grad():
        assert_close(compiled(x), layer(x).double())
    trace = thunder.last_traces(compiled)[-1]
    claimed = [line.symbol.short_name for line in trace.bound_symbols if line.executor == "triton"]
    return claimed, [refusal.reason for refusal in trace.refused if refusal.by_measurement]


@pytest.mark.parametrize("kind", LAYERS)
def test_few_rows_are_claimed_where_nothing_can_be_measured(kind: Any) -> None:
    assert run(layer_of(kind), 1) == ([LAYERS[kind]], [])
    assert run(layer_of(kind), 16) == ([LAYERS[kind]], [])
    assert run(layer_of(kind), 17) == ([], [measurement.ABSENT])
    assert run(layer_of(kind), 2, symbolic={"input.size(0)": (1, 8)}) == ([], [measurement.ABSENT])


def test_factors_are_multiplied_in_the_kernel_unless_the_products_are_read_elsewhere() -> None:
    layer = layer_of(Int8WeightOnlyLinear)

    def read_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = x * layer.factors
        return torch.ops.thunder.int8_product(scaled, layer.codes, layer.scales), scaled

    x = draw(2, 64, dtype=torch.bfloat16, seed=1)
    for function, expected in ((layer, ["int8_weight_product"]), (read_twice, ["mul", "int8_weight_product"])):
        compiled = thunder.jit(function, executors=["triton", "torch"])
        with torch.no_grad():
            compiled(x)
        names = [line.symbol.short_name for line in thunder.last_traces(compiled)[-1].bound_symbols]
        assert [name for name in names if "mul" in name or "product" in name] == expected


@pytest.mark.parametrize("kind", LAYERS)
def test_the_faster_of_both_is_called_and_the_times_are_kept(kind: Any, gpu: dict[str, float]) -> None:
    layer = layer_of(kind, columns=71)
    assert run(layer, 33) == ([LAYERS[kind]], [])
    assert run(layer, 33) == ([LAYERS[kind]], [])
    assert gpu["calls"] == 2
    gpu["library"] = 1.02
    ((), (reason,)) = map(tuple, run(layer, 34))
    assert reason.startswith("PyTorch computes 34 x 64 to 71, with ")
    assert "triton 1 ms, PyTorch 1.02 ms" in reason


def test_equal_products_are_measured_once(gpu: dict[str, float]) -> None:
    layers = torch.nn.Sequential(*(layer_of(Int8WeightOnlyLinear, columns=64) for _ in range(3)))
    assert run(layers, 5)[0] == ["int8_weight_product"] * 3
    assert gpu["calls"] == 2


def test_a_kernel_with_other_values_is_not_called(gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "is_close", lambda found, expected: False)
    claimed, (reason,) = run(layer_of(Int8WeightOnlyLinear, columns=72), 9)
    assert claimed == []
    assert "with other values" in reason


def test_no_time_to_measure_leaves_products_to_pytorch(gpu: dict[str, float]) -> None:
    with tuning(0.0):
        assert run(layer_of(Int8WeightOnlyLinear, columns=73), 9) == ([], [measurement.NOT_MEASURED])


def test_products_in_float64_and_recorded_products_are_not_claimed() -> None:
    layer = layer_of(Int8WeightOnlyLinear)
    compiled = thunder.jit(layer, executors=["triton", "torch"])
    with torch.no_grad():
        assert_close(compiled(draw(2, 64).double()), layer(draw(2, 64).double()))
    assert not [line for line in thunder.last_traces(compiled)[-1].bound_symbols if line.executor == "triton"]
    found = []
    for function in (layer, compiled):
        x = draw(2, 64).requires_grad_()
        function(x).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_measuring_compares_both_on_numbers_of_the_same_shapes(gpu: dict[str, float]) -> None:
    for kind, name in LAYERS.items():
        assert run(layer_of(kind, columns=9), 3)[0] == [name]  # a kernel with other values would not be called


def test_kernels_are_timed_on_the_gpu_of_their_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events and the L2 cache of a measurement belong to the current GPU, which may be another one."""
    entered: list[Any] = []

    class Current:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            entered.append(self.device)

        def __exit__(self, *_: object) -> None:
            entered.append(None)

    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(measurement, "operand_of", lambda proxy: torch.ones(2))
    monkeypatch.setattr(measurement, "milliseconds", lambda call: entered.append("timed") or 1.0)
    second = torch.device("cuda", 1)
    same = staticmethod(lambda operand: operand)
    product: Any = SimpleNamespace(
        proxies=[SimpleNamespace(device=second)], candidates={"kernel": same}, library=same, baseline=same
    )
    assert measurement.prepare(product)().agrees
    assert entered == [second, None, second, "timed", "timed", None]
