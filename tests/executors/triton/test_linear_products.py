"""Linear layers run the implementation that a measurement chooses, with what reads their results; a GPU is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, relu
from triton.runtime.errors import OutOfResources

import thunder_core as thunder
from tests.executors.triton.closeness import assert_close, draw
from tests.executors.triton.test_norm_products import Norm
from thunder_core.backend.claiming.device_code import targeting
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.compilation.compiler import last_program
from thunder_core.workflow.fault_localization.examination import examine
from thunder_core.workflow.pipeline.session.trace_stats import kernel_choices, refusals
from thunder_executors.triton import measurement
from thunder_executors.triton.launch import INTERPRETED
from thunder_executors.triton.products import linear_products
from thunder_executors.triton.products.linear_products import VECTORS, name_of, tiles_for

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for the interpreter")
WIDTH = 32


class WideNorm(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw(WIDTH, seed=7))


class Plain(nn.Module):
    """A linear layer."""

    def __init__(self, bias: bool = False, columns: int = 20, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, columns, bias=bias).to(dtype)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


class Activated(Plain):
    def forward(self, x: Tensor) -> Any:
        return gelu(self.layer(x), approximate="tanh")


class Added(Plain):
    def forward(self, x: Tensor) -> Any:
        return x[..., :1] + 1, self.layer(x) + x[..., :20]


class ReadTwice(Plain):
    def forward(self, x: Tensor) -> Any:
        product = self.layer(x)
        return relu(product), product


class Broadcast(Plain):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x) + x[..., :1]


class Doubled(Plain):
    def forward(self, x: Tensor) -> Any:
        product = self.layer(x)
        return product + product


class Normalized(Plain):
    """The norm of a layer's result and a residual, as in a Llama, and the sum."""

    def __init__(self, **options: Any) -> None:
        super().__init__(columns=WIDTH, **options)
        self.norm = WideNorm().to(self.layer.weight.dtype)

    def forward(self, x: Tensor, residual: Tensor) -> Any:
        total = residual + self.layer(x)
        return self.norm(total), total


class Written(Plain):
    def forward(self, x: Tensor) -> Any:
        product = self.layer(x)
        product.mul_(2)
        return product


class Several(Plain):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x), linear(x, self.layer.weight[:7])


def rows(count: int, seed: int = 1) -> Tensor:
    return draw(count, WIDTH, dtype=torch.bfloat16, seed=seed)


def run(module: nn.Module, *inputs: Tensor, **options: Any) -> tuple[list[str], Any]:
    """The names of the claimed calls, and the last trace; the results are compared with those in float64."""
    compiled = thunder.jit(module, executors=["triton", "torch"], **options)
    with torch.no_grad():
        found, expected = compiled(*inputs), module(*inputs)
    for actual, wanted in zip(*([x] if isinstance(x, Tensor) else x for x in (found, expected)), strict=True):
        assert_close(actual, wanted.double())
    trace = thunder.last_traces(compiled)[-1]
    names = [bsym.symbol.short_name for bsym in trace.bound_symbols if bsym.executor == "triton"]
    return names, trace


def reasons(trace: Any) -> list[str]:
    return [refusal.reason for refusal in refusals((), trace)]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 16, 20, 130])
def test_a_layer_of_any_number_of_rows_is_measured(count: int, gpu: dict[str, float]) -> None:
    assert run(Plain(), rows(count))[0] == ["linear_by_tile"]
    assert gpu["calls"] == len(tiles_for(count, torch.bfloat16)) + 2  # and cuBLASLt, and PyTorch
    assert run(Plain(bias=True), rows(count))[0] == ["linear_by_tile"]


def test_the_fastest_implementation_runs_and_the_report_has_the_times_of_all(
    gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    fastest = VECTORS[1]
    times = {name_of(tile): 1.5 for tile in VECTORS} | {name_of(fastest): 0.5}

    def milliseconds(call: Any) -> float:
        call()
        name = call.func.__name__
        return times[name_of(call.args[0])] if name == "by_tile" else 1.75 if name == "by_cublas_lt" else 2.0

    monkeypatch.setattr(measurement, "milliseconds", milliseconds)
    model = nn.Sequential(*(Plain(columns=WIDTH, dtype=torch.float32) for _ in range(3)))
    names, trace = run(model, rows(1).float())
    assert names == ["linear_by_tile"] * 3
    assert [bsym.args[-1] for bsym in trace.bound_symbols if bsym.executor] == [fastest] * 3
    (choice,) = kernel_choices(trace)
    assert (choice.executor, choice.operations) == ("triton", 3)
    assert choice.choice == (
        f"1 x {WIDTH} to {WIDTH} in float32: triton 1 x 8 x 512, 4 warps 0.5 ms, triton 1 x 4 x 1024, 4 warps 1.5 ms, "
        "triton 1 x 16 x 256, 4 warps 1.5 ms, cuBLASLt 1.75 ms, PyTorch 2 ms"
    )


def test_cublas_lt_may_be_the_fastest(gpu: dict[str, float]) -> None:
    gpu |= {"by_cublas_lt": 0.5}
    assert run(Plain(), rows(7))[0] == ["linear_by_cublas_lt"]
    assert run(Normalized(), rows(7), rows(7, 2))[0] == ["linear_by_cublas_lt", "add_norm"]
    assert run(Plain(bias=True), rows(7))[0] == ["linear_by_tile"]  # PyTorch itself calls cuBLASLt


def test_pytorch_may_be_the_fastest(gpu: dict[str, float]) -> None:
    gpu["library"] = 1.02
    names, trace = run(Plain(), rows(1))
    assert names == []
    assert reasons(trace)[0].startswith(f"PyTorch computes 1 x {WIDTH} to 20 in bfloat16: triton ")
    assert kernel_choices(trace) == ()


@pytest.mark.parametrize("count", [1, 6])
def test_operation_that_reads_the_result_is_part_of_the_kernel(count: int, gpu: dict[str, float]) -> None:
    for model in (Activated(bias=True), Activated(), Added(bias=True)):
        names, trace = run(model, rows(count))
        assert names == ["linear_by_tile"]
        assert not {"gelu", "linear"} & {bsym.symbol.short_name for bsym in trace.bound_symbols}
    names, trace = run(Normalized(bias=True), rows(count), rows(count, 2))
    assert names == ["linear_by_tile", "norm"]
    assert reasons(trace) == []


def test_other_readers_are_not_part_of_the_kernel(gpu: dict[str, float]) -> None:
    for model, others in ((ReadTwice(), ["relu"]), (Broadcast(), ["__getitem__", "add"]), (Doubled(), ["add"])):
        names, trace = run(model, rows(2))
        assert names == ["linear_by_tile"]
        unclaimed = {bsym.symbol.short_name.strip("_") for bsym in trace.bound_symbols if bsym.executor != "triton"}
        assert {name.strip("_") for name in others} <= unclaimed
    assert run(Written(), rows(2))[0] == []


def test_few_rows_that_several_layers_read_are_left_to_be_joined(gpu: dict[str, float]) -> None:
    assert run(Several(), rows(1))[0] == []
    assert run(Several(), rows(5))[0] == ["linear_by_tile", "linear_by_tile"]
    prompt = rows(5).unsqueeze(0)
    assert run(Several(), prompt, symbolic={"x.size(1)": (2, 40)})[0] == ["linear_by_rows", "linear_by_rows"]


def test_layers_of_one_row_that_read_a_norm_are_compared_after_the_norm(gpu: dict[str, float]) -> None:
    """The norm may become part of the product; otherwise the layer alone may be faster, as for logits."""
    model = nn.Sequential(WideNorm(), Plain(dtype=torch.float32).layer)
    assert run(model, rows(1).float())[0] == ["norm_linear"]
    gpu["kernel"] = 3.0
    gpu["by_tile"] = 1.0
    assert run(nn.Sequential(WideNorm(), Plain(columns=21, dtype=torch.float32).layer), rows(1).float())[0] == [
        "norm",
        "linear_by_tile",
    ]


def test_a_range_of_rows_has_a_choice_for_several_numbers(gpu: dict[str, float]) -> None:
    model = Plain(bias=True)
    compiled = thunder.jit(model, executors=["triton", "torch"], symbolic={"x.size(0)": (2, 40)})
    with torch.no_grad():
        for count in (3, 5, 17, 40):
            assert_close(compiled(rows(count)), model(rows(count)).double())
    assert thunder.cache_misses(compiled) == 1
    (bsym,) = (bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "triton")
    assert bsym.symbol.short_name == "linear_by_rows"
    assert [limit for limit, _ in bsym.args[-1]] == [4, 16, 40]
    (choice,) = kernel_choices(thunder.last_traces(compiled)[-1])
    assert [part.partition(" x ")[0] for part in choice.choice.split("; ")] == ["4", "16", "40"]


def test_a_range_keeps_pytorch_where_it_is_faster(gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    compare = measurement._choice_of
    monkeypatch.setattr(
        measurement,
        "_choice_of",
        lambda product, budget: (
            measurement.Choice("", "PyTorch is faster") if product.rows == 16 else compare(product, budget)
        ),
    )
    _, trace = run(Plain(), rows(6), symbolic={"x.size(0)": (2, 40)})
    (bsym,) = (bsym for bsym in trace.bound_symbols if bsym.executor == "triton")
    assert [choice == "" for _, choice in bsym.args[-1]] == [False, True, False]


def test_tiles_that_a_gpu_has_no_memory_for_are_dropped(gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    def by_tile(self: Any, tile: Any, *operands: Tensor) -> Tensor:
        raise OutOfResources(200_000, 100_000, "shared memory")

    monkeypatch.setattr(linear_products.Layer, "by_tile", by_tile)
    assert run(Plain(columns=22), rows(5))[0] == ["linear_by_cublas_lt"]
    names, trace = run(Plain(columns=22, bias=True), rows(5))
    assert names == []
    assert "no kernel runs on this GPU, PyTorch 2 ms" in reasons(trace)[0]


def test_without_memory_for_a_measurement_pytorch_computes(
    gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def operand_of(proxy: Any) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(measurement, "operand_of", operand_of)
    names, trace = run(Plain(), rows(5))
    assert (names, reasons(trace)) == ([], [measurement.NO_MEMORY])


def test_a_tile_with_other_values_is_not_called(gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "is_close", lambda found, expected: False)
    assert run(Plain(), rows(5))[0] == []


def test_nothing_is_chosen_without_a_measurement(gpu: dict[str, float]) -> None:
    with tuning(0.0):
        names, trace = run(Plain(), rows(1))
    assert (names, reasons(trace)) == ([], [measurement.NOT_MEASURED])
    with targeting("sm_90"):
        names, trace = run(Plain(), rows(1))
    assert (names, reasons(trace)) == ([], [measurement.ABSENT])
    assert gpu["calls"] == 0


def test_recorded_layers_and_other_dtypes_are_left_to_pytorch(gpu: dict[str, float]) -> None:
    compiled = thunder.jit(model := Plain(), executors=["triton", "torch"])
    with torch.no_grad():
        compiled(rows(2))
    assert run(Plain(dtype=torch.float64), rows(2).double())[0] == []
    assert run(Plain(dtype=torch.float32), rows(20).float())[0] == ["linear_by_cublas_lt"]
    results = []
    for function in (model, compiled):
        x = rows(2).requires_grad_()
        function(x).sum().backward()
        results.append(x.grad)
    assert torch.equal(*results)


def test_rows_at_odd_addresses_are_multiplied_one_by_one_or_by_pytorch(gpu: dict[str, float]) -> None:
    for count, names in ((2, ["linear_by_tile"]), (20, ["linear_by_cublas_lt"])):
        layer = nn.Linear(24, 8, bias=False).bfloat16()
        assert run(layer, draw(count, 24, dtype=torch.bfloat16))[0] == names


def test_choices_are_kept_for_the_next_process(gpu: dict[str, float]) -> None:
    run(Plain(), rows(6))
    calls = gpu["calls"]
    run(Plain(), rows(6))
    assert gpu["calls"] == calls


def test_a_wrong_kernel_is_found_line_by_line(gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line contains the calls that it replaces."""
    model, inputs = Normalized(dtype=torch.float32), (rows(3).float(), rows(3, 2).float())
    compiled = thunder.jit(model, executors=["triton", "torch"])
    with torch.no_grad():
        compiled(*inputs)
        program = last_program(compiled)
        by_tile, norm = (bsym for bsym in program.last("computation").bound_symbols if bsym.executor == "triton")
        assert [part.symbol.short_name.strip("_") for part in by_tile.subsymbols] == ["linear", "add"]
        assert norm.output.name in {proxy.name for part in norm.subsymbols for proxy in part.defines}
        report = examine(program, model, inputs, {}, probe_guards=False)
        assert (report.faults, report.compared) == ((), 2)
        wrong = linear_products.linear.launcher
        monkeypatch.setattr(linear_products, "linear", lambda *arguments: wrong(*arguments) * 1.01)
        (fault,) = examine(program, model, inputs, {}, probe_guards=False).faults
    assert (fault.kind, fault.by) == ("executor", "triton")
    assert "linear_by_tile(" in fault.line


def test_an_artifact_keeps_the_choices(gpu: dict[str, float], tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(WIDTH, 20), nn.Linear(20, 7, bias=False)), rows(3).float()
    cases: tuple[dict[str, Any], ...] = ({}, {"symbolic": {"input.size(0)": (2, 40)}})
    for options in cases:
        compiled = thunder.jit(model, executors=["triton", "torch"], **options)
        folder = tmp_path / str(len(options))
        with torch.no_grad():
            expected = compiled(x)
            thunder.save(compiled, folder)
            calls = gpu["calls"]
            loaded = thunder.load(folder, model)
            assert torch.equal(loaded(x), expected)
        assert gpu["calls"] == calls
        source = str(thunder.last_traces(loaded)[-1])
        assert source.count("linear_by_rows(" if options else "linear_by_tile(") == 2


def test_numbers_of_rows_without_a_bound_are_compared_up_to_4096(gpu: dict[str, float]) -> None:
    model = nn.Linear(WIDTH, 6, bias=False).bfloat16()
    compiled = thunder.jit(model, executors=["triton", "torch"], cache="symbolic values")
    with torch.no_grad():
        for count in (5, 70, 3):
            x = rows(count).unsqueeze(0)
            assert_close(compiled(x), model(x).double())
    (bsym,) = (bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "triton")
    assert [limit for limit, _ in bsym.args[-1]][-1] == 4096
