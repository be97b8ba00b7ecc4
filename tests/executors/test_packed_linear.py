"""Linear layers on the CPU run the kernel: its values are PyTorch's for all shapes and after writes to the weights."""

from __future__ import annotations

import io
import math
import os
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional
from torch.nn.functional import linear

import thunder_core as thunder
from tests.executors.vectors import AVX2, WIDE
from tests.processes import run_python
from thunder_cli.views.outcome import choices_view
from thunder_core.backend.cache import Store
from thunder_core.backend.claiming import kernel_times
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.backend.fusion.machine_code import extension
from thunder_core.backend.quantization.integers import BLOCK
from thunder_core.backend.quantization.products import IMPLEMENTATIONS, int4_rows
from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.tracing.ir.proxy import tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.workflow.artifact.format import compatibility
from thunder_core.workflow.pipeline.session.executors import unused_executors
from thunder_core.workflow.pipeline.session.trace_stats import kernel_choices
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_linear import EXECUTOR, PackedLinear, measurement
from thunder_executors.packed_linear.activations import GELU, GELU_TANH, RELU, SILU
from thunder_executors.packed_linear.kernel import library_of
from thunder_executors.packed_linear.measurement import Times
from thunder_executors.packed_linear.product import Product
from thunder_executors.packed_linear.product_kinds import FLOAT32, KINDS, LINEAR, ProductKind
from thunder_executors.packed_linear.source import ARGUMENTS, NAME, source_of

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))
KERNEL = PackedLinear(measures=False)
EXECUTORS = (KERNEL, "torch")


class Layer(nn.Module):
    """One linear layer, in the module of this file."""

    def __init__(self, depth: int = 48, columns: int = 33, bias: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(depth, columns, bias=bias)

    def forward(self, x):
        return self.linear(x)


Layer.__module__ = "tests.executors.test_packed_linear"


def claimed_in(compiled) -> list[BoundSymbol]:
    return [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "packed-linear"]


def in_double(x, weight, bias=None):
    return linear(x.double(), weight.double(), None if bias is None else bias.double())


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


def write_in_place(layer):
    layer.weight.mul_(2)


def write_behind_autograd(layer):
    layer.weight.data[3, 5] = 100.0


def write_by_numpy(layer):
    layer.weight.detach().numpy()[...] = 0.5


def set_data(layer):
    layer.weight.data = torch.randn_like(layer.weight)


def set_data_twice(layer):
    layer.weight.data = torch.zeros_like(layer.weight)
    layer.weight.data = torch.randn_like(layer.weight)


def replace_parameter(layer):
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))


def load(layer):
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})


def load_by_assignment(layer):
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()}, assign=True)


CHANGES = (
    write_in_place, write_behind_autograd, write_by_numpy, set_data, set_data_twice, replace_parameter, load,
    load_by_assignment,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [1, 20])
def test_weights_that_change_count_at_the_next_call(change, rows):
    layer, x = Layer(), torch.randn(rows, 48)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad():
        before = compiled(x)
        change(layer.linear)
        found = compiled(x)
        torch.testing.assert_close(found, layer(x))
        assert not torch.equal(found, before)


def test_a_weight_that_the_program_writes_to_counts_from_then_on():
    def function(layer, x):
        first = layer(x)
        layer.linear.weight.mul_(2)
        return first, layer(x)

    compiled, x = thunder.jit(function, executors=EXECUTORS), torch.randn(20, 48)
    with torch.no_grad():
        for found, expected in zip(compiled(Layer(), x), function(Layer(), x), strict=True):
            torch.testing.assert_close(found, expected)
    assert len(claimed_in(compiled)) == 2


def test_training_step_has_the_gradients_of_pytorch():
    model, x = nn.Sequential(Layer(), nn.Tanh(), Layer(33, 5)), torch.randn(20, 48, requires_grad=True)
    compiled = thunder.jit(model, executors=EXECUTORS)
    for _ in range(2):  # the second step reads the weights that the first step wrote
        tensors = [x, *model.parameters()]
        found = torch.autograd.grad(compiled(x).square().sum(), tensors)
        expected = torch.autograd.grad(model(x).square().sum(), tensors)
        for actual, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), found[1:], strict=True):
                parameter.sub_(0.01 * gradient)


def test_layer_that_autograd_records_is_left_to_others():
    layer, x, seen = Layer(), torch.randn(20, 48, requires_grad=True), []
    layer.linear.register_full_backward_hook(lambda module, given, taken: seen.append(taken))
    compiled = thunder.jit(layer, executors=EXECUTORS)
    compiled(x).sum().backward()
    assert thunder.last_backward_reason(compiled)
    assert claimed_in(compiled) == []
    assert len(seen) == 1


def test_frozen_layers_of_a_training_step_keep_their_derivative():
    base, adapter, x = Layer().requires_grad_(False), Layer(33, 5), torch.randn(20, 48)

    def function(base, adapter, x):
        return adapter(base(x).tanh())

    compiled = thunder.jit(function, executors=EXECUTORS)
    compiled(base, adapter, x).sum().backward()
    found = adapter.linear.weight.grad.clone()
    adapter.zero_grad()
    function(base, adapter, x).sum().backward()
    torch.testing.assert_close(found, adapter.linear.weight.grad)


def test_a_part_without_gradients_is_taken():
    def function(layer, x):
        with torch.no_grad():
            teacher = layer(x)
        return layer(x) - teacher

    layer, x = Layer(), torch.randn(20, 48)
    compiled = thunder.jit(function, executors=EXECUTORS)
    compiled(layer, x).square().sum().backward()
    torch.testing.assert_close(layer.linear.weight.grad, torch.zeros(33, 48), atol=1e-3, rtol=0)


def test_frozen_weights_are_claimed_with_autograd_on():
    layer, x = Layer().requires_grad_(False), torch.randn(20, 48)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    torch.testing.assert_close(compiled(x), layer(x))
    assert claimed_in(compiled)


@pytest.mark.parametrize("dtype", [torch.float64])
def test_other_dtypes_are_left_to_others(dtype):
    layer, x = Layer().to(dtype), torch.randn(20, 48, dtype=dtype)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
    assert claimed_in(compiled) == []


def test_autocast_is_left_to_others():
    layer, x = Layer(), torch.randn(20, 48)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = compiled(x), layer(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected)
    assert claimed_in(compiled) == []


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


LOADS = """
import sys, torch
import thunder_core as thunder
from tests.executors.test_packed_linear import Layer
x, expected = torch.load(sys.argv[2])
loaded = thunder.load(sys.argv[1], Layer(), strict=True)
with torch.no_grad():
    assert torch.equal(loaded(x), expected)
assert "torch._inductor.compile_fx" not in sys.modules
print("equal")
"""


def test_an_artifact_runs_in_a_process_without_compiler_or_cache(tmp_path):
    compiled = thunder.jit(Layer(), executors=EXECUTORS)
    assert_equal_without_compiler(compiled, torch.randn(20, 48), LOADS, tmp_path)


def assert_equal_without_compiler(compiled, x, program, folder):
    """Assert that a program prints that the artifact gives the same in a process without compiler and cache."""
    with torch.no_grad():
        torch.save((x, compiled(x)), folder / "values.pt")
    thunder.save(compiled, folder / "artifact")
    places = {**os.environ, "CXX": "/bin/false", "THUNDER_CACHE_DIR": str(folder / "empty")}
    done = run_python("-c", program, folder / "artifact", folder / "values.pt", env=places)
    assert done.stdout == "equal\n", done.stderr


def test_an_artifact_is_refused_by_a_processor_that_lacks_its_instructions(tmp_path, monkeypatch):
    layer, x = Layer(), torch.randn(20, 48)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad():
        compiled(x)
    thunder.save(compiled, tmp_path / "artifact")
    monkeypatch.setattr(compatibility, "instruction_sets", lambda: frozenset({"sse4_2"}))
    with pytest.raises(ArtifactForeign, match="avx2"):
        thunder.load(tmp_path / "artifact", layer)


def test_the_executor_is_missing_if_the_processor_lacks_avx2(monkeypatch):
    monkeypatch.setattr("thunder_executors.packed_linear.claims.missing_processor", lambda: "the kernel needs AVX2")
    assert KERNEL.missing() == "the kernel needs AVX2"
    compiled = thunder.jit(Layer(), executors=EXECUTORS)
    with torch.no_grad():
        compiled(torch.randn(20, 48))
    assert claimed_in(compiled) == []


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache that contains the compiled kernel and no measurements."""
    content = library_of(FLOAT32).content
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("THUNDER_TUNE", "10s")
    monkeypatch.setattr(KernelLibrary, "content", content)


def measured_as(monkeypatch, kernel: float, library: float) -> list[str]:
    """Make measurements return these seconds, and return the list of measured products."""
    titles: list[str] = []

    def measure(product, _function):
        titles.append(product.title)
        return Times(kernel, library)

    monkeypatch.setattr(measurement, "measure", measure)
    return titles


def compiled_layers(*layers: Layer):
    compiled = thunder.jit(nn.Sequential(*layers), executors=(PackedLinear(), "torch"))
    with torch.no_grad():
        compiled(torch.randn(20, layers[0].linear.in_features))
    return compiled


def refused_by_kernel(compiled) -> list[tuple[str, int]]:
    return [
        (refusal.reason, refusal.count)
        for refusal in thunder.last_traces(compiled)[-1].refused
        if refusal.executor == KERNEL.name
    ]


def test_the_faster_kernel_is_chosen_and_its_times_are_kept(own_cache, monkeypatch):
    titles = measured_as(monkeypatch, 1e-3, 2e-3)
    compiled = compiled_layers(Layer(48, 48), Layer(48, 48), Layer(48, 32, bias=False))
    assert titles == ["20 x 48 to 48, with bias", "20 x 48 to 32"]
    assert len(claimed_in(compiled)) == 3
    (choice, _) = kernel_choices(thunder.last_traces(compiled)[-1])
    assert choice.operations == 2
    assert choice.choice == "20 x 48 to 48, with bias: packed-linear 1.00 ms, torch.nn.functional.linear 2.00 ms"
    compiled_layers(Layer(48, 48))
    assert len(titles) == 2


def test_times_that_another_process_has_kept_meanwhile_decide(own_cache, monkeypatch):
    def measure(product, _function):
        Store().get_or_build(measurement.key_of(product), lambda folder: kernel_times.write(folder, Times(2e-3, 1e-3)))
        return Times(1e-3, 2e-3)

    monkeypatch.setattr(measurement, "measure", measure)
    assert claimed_in(compiled_layers(Layer(48, 48))) == []


def test_the_times_are_shown(own_cache, monkeypatch):
    measured_as(monkeypatch, 1e-3, 2e-3)
    choices = kernel_choices(thunder.last_traces(compiled_layers(Layer(48, 48)))[-1])
    console = Console(width=120, file=io.StringIO())
    for view in choices_view(SimpleNamespace(choices=choices)):
        console.print(view)
    assert (
        "20 x 48 to 48, with bias: packed-linear 1.00 ms, torch.nn.functional.linear 2.00 ms" in console.file.getvalue()
    )


@pytest.mark.parametrize("kernel", [2e-3, 1e-3, 0.98e-3])
def test_the_library_multiplies_unless_the_kernel_is_clearly_faster(own_cache, monkeypatch, kernel):
    measured_as(monkeypatch, kernel, 1e-3)
    compiled = compiled_layers(Layer(48, 48), Layer(48, 48))
    assert claimed_in(compiled) == []
    ((reason, count),) = refused_by_kernel(compiled)
    assert reason.startswith("PyTorch multiplies 20 x 48 to 48, with bias: packed-linear ")
    assert count == 2
    assert [*unused_executors([thunder.last_traces(compiled)[-1]])] == []


def test_a_kernel_that_computes_other_values_is_not_chosen(own_cache, monkeypatch):
    monkeypatch.setattr(KernelLibrary, "function", lambda self, name: lambda *args: args[3].zero_())
    compiled = compiled_layers(Layer(48, 48))
    assert claimed_in(compiled) == []
    ((reason, _),) = refused_by_kernel(compiled)
    assert "with other values" in reason


def test_nothing_is_measured_if_tuning_is_off(own_cache, monkeypatch):
    titles = measured_as(monkeypatch, 1e-3, 2e-3)
    with tuning(0):
        compiled = compiled_layers(Layer())
    assert (titles, claimed_in(compiled)) == ([], [])
    assert refused_by_kernel(compiled) == []


def test_layers_beyond_the_tuning_budget_are_left_to_the_library(own_cache, monkeypatch):
    titles = measured_as(monkeypatch, 1e-3, 2e-3)
    with tuning(1e-6):
        compiled = compiled_layers(Layer())
    assert (titles, claimed_in(compiled)) == ([], [])
    assert refused_by_kernel(compiled) == [("it was not measured in the time that --tune allows", 1)]


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(0, 64, 32), (1, 2, 2), (20, 64, 32), (1, 8192, 16384), (4000, 1024, 4096)]
)
def test_measurement_gives_times_near_its_estimate(rows, depth, columns):
    x, weight = torch.empty(rows, depth, device="meta"), torch.empty(columns, depth, device="meta")
    proxies = [tensor_proxy(name, one) for name, one in (("x", x), ("weight", weight), ("y", linear(x, weight)))]
    product = Product(proxies[0], proxies[1], None, proxies[2])
    state = torch.random.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        times = measurement.measure(product, library_of(FLOAT32).function(NAME))
    assert torch.equal(state, torch.random.get_rng_state())
    estimate = measurement.call_seconds(rows, depth, columns)
    assert 0 < times.kernel < 100 * (estimate + 1e-5)
    assert 0 < times.library < 100 * (estimate + 1e-5)
    assert measurement.measuring_seconds(product) < 1
    assert times.agrees


def test_measured_kernel_matches_a_real_measurement(own_cache):
    compiled = compiled_layers(Layer(64, 64))
    trace = thunder.last_traces(compiled)[-1]
    told = [entry.choice for entry in kernel_choices(trace)] or [reason for reason, _ in refused_by_kernel(compiled)]
    assert "torch.nn.functional.linear" in told[0]


def operands_of(kind: ProductKind, rows: int, depth: int, columns: int, extra: bool = True) -> tuple[torch.Tensor, ...]:
    """Return random operands of a product; integers have all values of 8 bits."""

    def numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(-128, 128, shape, dtype=dtype)

    x = numbers(rows, depth, dtype=kind.input)
    if kind.in_groups:
        codes = torch.randint(0, 256, (-(-columns // BLOCK), depth, BLOCK // 2), dtype=torch.uint8)
        return x, codes, numbers(math.gcd(depth, 4), columns, 2, dtype=kind.extra)
    weight = numbers(columns, depth, dtype=kind.weight)
    return (x, weight, numbers(columns, dtype=kind.extra)) if kind.extra and (extra or kind.scales) else (x, weight)


def exact_product(kind: ProductKind, x, weight, extra=None):
    """Return a product in float64, or in int64 of integers."""
    wide = torch.float64 if kind.result.is_floating_point else torch.int64
    if kind.in_groups:
        return x.to(wide) @ int4_rows(weight, extra, 0, extra.shape[1], wide).t()
    product = x.to(wide) @ weight.to(wide).t()
    if extra is None:
        return product
    return product * extra.double() if kind.scales else product + extra.double()


def assert_exact(kind: ProductKind, found, operands) -> None:
    """Check that a result is the exact one, rounded once to its dtype after sums in float32."""
    exact, depth = exact_product(kind, *operands), operands[0].shape[1]
    assert found.dtype == kind.result
    if kind.result == torch.int32:
        assert torch.equal(found.long(), exact)
        return
    size = largest_sum(kind, *operands) / max(depth, 1) ** 0.5
    difference = (found.double() - exact).abs()
    assert (difference <= 0.51 * torch.finfo(kind.result).eps * exact.abs() + 1e-5 * size).all()


def largest_sum(kind: ProductKind, x, weight, extra=None):
    """Return the largest sum of the absolute products of a product."""
    if kind.in_groups:
        return (x.abs().double() @ int4_rows(weight, extra, 0, extra.shape[1], torch.float64).abs().t()).max()
    return exact_product(kind, *(operand.abs() for operand in (x, weight, extra) if operand is not None)).max()


def program_of(kind: ProductKind):
    """Return a function of the operands that has the operation of a kind of products."""
    assert kind.operation == LINEAR or kind.operation.rpartition(".")[2] in IMPLEMENTATIONS
    return lambda *operands: kind.function(*operands)


NARROW = KINDS[1:]
IDS = [kind.words for kind in NARROW]
IN_ROWS = [pytest.param(kind, id=kind.words) for kind in NARROW if not kind.in_groups]


@pytest.mark.parametrize("kind", NARROW, ids=IDS)
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16, 17, 23, 101])
def test_narrow_numbers_are_multiplied_exactly_and_rounded_once(kind, rows):
    torch.manual_seed(rows)
    compiled = thunder.jit(program_of(kind), executors=EXECUTORS, cache="no caching")
    for depth, columns in ((1, 1), (7, 5), (33, 31), (64, 48), (1025, 33), (1300, 48)):
        for extra in (False, True):
            operands = operands_of(kind, rows, depth, columns, extra)
            with torch.no_grad():
                assert_exact(kind, compiled(*operands), operands)
            assert len(claimed_in(compiled)) == 1


@pytest.mark.parametrize("kind", IN_ROWS)
def test_narrow_rows_with_gaps_are_read_without_a_copy(kind):
    x, weight, *extra = operands_of(kind, 20, 96, 24)
    x = x[::2, 32:64]
    weight = weight[:, 8:40]
    compiled = thunder.jit(program_of(kind), executors=EXECUTORS)
    with torch.no_grad():
        assert_exact(kind, compiled(x, weight, *extra), (x, weight, *extra))
    assert len(claimed_in(compiled)) == 1


@pytest.mark.parametrize("kind", NARROW, ids=IDS)
def test_a_narrow_weight_that_is_written_to_counts_at_the_next_call(kind):
    operands = operands_of(kind, 20, 32, 24)
    compiled = thunder.jit(program_of(kind), executors=EXECUTORS)
    with torch.no_grad():
        before = compiled(*operands)
        operands[1].data[..., 3] = 7
        assert_exact(kind, compiled(*operands), operands)
    assert not torch.equal(before, compiled(*operands))


@pytest.mark.parametrize("kind", NARROW, ids=IDS)
def test_a_single_program_serves_every_number_of_narrow_rows(kind):
    compiled = thunder.jit(program_of(kind), executors=EXECUTORS, symbolic={"operands[0].size(0)": (1, 64)})
    _, *others = operands_of(kind, 1, 48, 33)
    for rows in (5, 1, 17, 64, 2):
        x, *_ = operands_of(kind, rows, 48, 1)
        with torch.no_grad():
            assert_exact(kind, compiled(x, *others), (x, *others))
    assert len(claimed_in(compiled)) == 1
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_infinite_and_missing_narrow_numbers_stay_in_their_rows_and_columns(dtype):
    x, weight = torch.randn(20, 32, dtype=dtype), torch.randn(37, 32, dtype=dtype)
    x[3, 5], x[7, 0], weight[36, 31] = float("inf"), float("nan"), float("-inf")
    if dtype == torch.float16:
        x[11], weight[20] = torch.finfo(dtype).max, 1.0  # their product is rounded to infinity
    for rows in (20, 8):
        found = thunder.jit(linear, executors=EXECUTORS)(x[:rows], weight)
        exact = in_double(x[:rows], weight).to(dtype)
        torch.testing.assert_close(found, exact, equal_nan=True, rtol=0.02, atol=0.02)


def test_mixed_dtypes_are_left_to_others():
    function = program_of(next(kind for kind in KINDS if kind.scales))
    operands = torch.randn(20, 32).double(), torch.randint(-128, 128, (24, 32), dtype=torch.int8), torch.rand(24)
    compiled = thunder.jit(function, executors=EXECUTORS)
    torch.testing.assert_close(compiled(*operands), function(*operands))
    assert claimed_in(compiled) == []


def test_a_bias_of_one_number_is_left_to_others():
    operands = torch.randn(20, 32), torch.randn(24, 32), torch.randn(1)
    compiled = thunder.jit(linear, executors=EXECUTORS)
    torch.testing.assert_close(compiled(*operands), linear(*operands))
    assert claimed_in(compiled) == []


@pytest.mark.filterwarnings("ignore::thunder_core.errors.DegradedWarning")  # processors differ
@pytest.mark.parametrize("recipe", ["int8-dynamic", "int8-weight-only", "int4-weight-only", "bf16"])
def test_quantized_layers_run_the_kernel(recipe, monkeypatch):
    monkeypatch.setenv("THUNDER_TUNE", "10s")
    monkeypatch.setattr("thunder_executors.packed_linear.times_of", lambda *_: Times(1e-3, 2e-3))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 48)).eval()
    compiled = thunder.compile(model, ["default", recipe])
    for rows in (2, 40):
        x = torch.randn(rows, 64)
        with torch.no_grad():
            found, expected = compiled(x), model(x)
        assert (found - expected).norm() < (0.15 if recipe == "int4-weight-only" else 0.03) * expected.norm()
    assert len(claimed_in(compiled)) == 2


def test_training_in_bfloat16_has_the_gradients_of_pytorch():
    model, x = Layer().bfloat16(), torch.randn(20, 48, dtype=torch.bfloat16)
    compiled = thunder.jit(model, executors=EXECUTORS)
    found = torch.autograd.grad(compiled(x).sum(), [*model.parameters()])
    expected = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0.02, atol=0.02)


# Rows, depth and columns: each number of rows for which dot products differ, rows that stay in the cache and others.
SHAPES = (
    *((rows, depth, 50) for rows in range(1, 17) for depth in (40, 1100)),
    *((17, 520, 32), (27, 16, 70), (31, 1100, 33), (60, 64, 31)),
)


@pytest.mark.parametrize("vectors", [WIDE, AVX2], ids=["of 16 numbers", "of 8 numbers"])
@pytest.mark.parametrize("kind", KINDS, ids=["in float32", *IDS])
def test_tiles_of_other_vectors_give_the_same_product(kind, vectors):
    from thunder_executors.inductor.building.compilers import compilers  # imports Inductor
    from thunder_executors.inductor.building.library import compile_library as compiled_library
    from thunder_executors.inductor.generate import CppKernel

    with compilers() as started:
        code = CppKernel(ARGUMENTS, source_of(kind.type, vectors))
        multiply = vars(extension(compiled_library({NAME: code}, started)))[NAME]
    for rows, depth, columns in SHAPES:
        operands = operands_of(kind, rows, depth, columns)
        result = torch.zeros(rows, columns, dtype=kind.result)
        stride = depth // len(operands[-1]) if kind.in_groups else depth
        sizes = rows, depth, columns, depth, stride, int(len(operands) > 2)
        multiply(*operands[:2], operands[-1], result, *sizes, 0)
        assert_exact(kind, result, operands)
        for activation in (RELU, SILU, GELU, GELU_TANH) if kind.result == torch.float32 else ():
            product = result.clone()
            multiply(*operands[:2], operands[-1], result, *sizes, activation.number)
            torch.testing.assert_close(result, activation.function(product), rtol=1e-5, atol=1e-6 * depth**0.5)
            result = product


def test_activations_have_different_numbers():
    assert [activation.number for activation in (RELU, SILU, GELU, GELU_TANH)] == [1, 2, 3, 4]


ACTIVATED = {
    "relu": functional.relu,
    "relu of torch": torch.relu,
    "relu as a method": lambda x: x.relu(),
    "silu": functional.silu,
    "silu by name": lambda x: functional.silu(input=x),
    "gelu": functional.gelu,
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "a module": nn.GELU(),
}


@pytest.mark.parametrize("name", ACTIVATED)
def test_an_activation_is_computed_with_the_product(name):
    activation = ACTIVATED[name]
    compiled = thunder.jit(lambda *operands: activation(linear(*operands)), executors=EXECUTORS, cache="no caching")
    for rows, columns in ((1, 5), (3, 16), (12, 37), (40, 5), (40, 64), (100, 33)):
        operands = 3 * torch.randn(rows, 24), torch.randn(columns, 24), torch.randn(columns)
        with torch.no_grad():
            found, exact = compiled(*operands), activation(linear(*(operand.double() for operand in operands)))
        assert (found - exact).abs().max() <= 3e-6 * exact.abs().max()
        (call,) = claimed_in(compiled)
        assert [bsym.executor for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor] == [
            "packed-linear"
        ]
        assert len(call.subsymbols) == 2


EXTREMES = (0.0, -0.0, 1e-30, -1e-30, 5.0, -5.0, -9.0, 88.0, -88.0, 100.0, -100.0, 3e38, -3e38, float("inf"))


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "gelu by tanh"])
def test_activations_of_extreme_numbers_match_float64(name, rows):
    """PyTorch's GELU in float32 is infinite or no number for the largest of them on a processor with AVX-512."""
    compiled = thunder.jit(lambda x, weight: ACTIVATED[name](linear(x, weight)), executors=EXECUTORS)
    for value in (*EXTREMES, float("-inf"), float("nan")):
        x, weight = torch.full((rows, 1), value), torch.ones(17, 1)
        with torch.no_grad():
            found, exact = compiled(x, weight), ACTIVATED[name](linear(x.double(), weight.double()))
        torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-6, equal_nan=True)


def read_twice(x, weight):
    product = linear(x, weight)
    return functional.silu(product) + product


def returned_too(x, weight):
    product = linear(x, weight)
    return functional.gelu(product), product


def viewed_too(x, weight):
    product = linear(x, weight)
    half = product[:10]
    return functional.relu(product), half


def written_in_between(x, weight):
    product = linear(x, weight)
    product.add_(1)
    return functional.silu(product)


def in_place(x, weight):
    return functional.relu_(linear(x, weight))


def in_place_by_option(x, weight):
    return functional.silu(linear(x, weight), inplace=True)


@pytest.mark.parametrize(
    "function", [read_twice, returned_too, viewed_too, written_in_between, in_place, in_place_by_option]
)
def test_a_product_that_is_read_elsewhere_keeps_its_value(function):
    compiled, x, weight = thunder.jit(function, executors=EXECUTORS), torch.randn(20, 32), torch.randn(24, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, weight), function(x, weight), rtol=1e-5, atol=1e-5)
    assert [len(call.subsymbols) for call in claimed_in(compiled)] == [1]


def test_halves_of_a_gated_layer_are_two_kernels():
    def gated(x, gate, up):
        return functional.silu(linear(x, gate)) * linear(x, up)

    compiled = thunder.jit(gated, executors=EXECUTORS, symbolic={"x.size(0)": (1, 64)})
    gate, up = torch.randn(24, 32), torch.randn(24, 32)
    for rows in (20, 1, 17, 64):
        x = torch.randn(rows, 32)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, gate, up), gated(x, gate, up), rtol=1e-5, atol=1e-5)
    assert [len(call.subsymbols) for call in claimed_in(compiled)] == [2, 1]
    assert thunder.cache_misses(compiled) == 1


def test_training_step_with_an_activation_has_the_gradients_of_pytorch():
    model, x = nn.Sequential(Layer(), nn.GELU(), Layer(33, 5), nn.SiLU()), torch.randn(20, 48)
    compiled = thunder.jit(model, executors=EXECUTORS)
    found = torch.autograd.grad(compiled(x).square().sum(), [*model.parameters()])
    expected = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


def test_a_slower_activation_leaves_the_product_to_the_kernel(own_cache, monkeypatch):
    def measure(product, _function):
        return Times(3e-3 if product.activation else 1e-3, 2e-3)

    monkeypatch.setattr(measurement, "measure", measure)
    compiled = thunder.jit(nn.Sequential(Layer(48, 48), nn.SiLU()), executors=(PackedLinear(), "torch"))
    with torch.no_grad():
        compiled(torch.randn(20, 48))
    assert [len(call.subsymbols) for call in claimed_in(compiled)] == [1]
    assert refused_by_kernel(compiled) == []


def test_the_title_of_a_measurement_names_the_activation(own_cache, monkeypatch):
    titles = measured_as(monkeypatch, 1e-3, 2e-3)
    compiled = thunder.jit(
        nn.Sequential(Layer(48, 48), nn.GELU(approximate="tanh")), executors=(PackedLinear(), "torch")
    )
    with torch.no_grad():
        compiled(torch.randn(20, 48))
    assert titles == ["20 x 48 to 48, with bias, gelu by tanh"]


NARROW_LOADS = """
import sys, torch
import thunder_core as thunder
from tests.executors.test_packed_linear import Layer
x, expected = torch.load(sys.argv[2])
loaded = thunder.load(sys.argv[1], torch.nn.Sequential(Layer().bfloat16(), torch.nn.Identity()), strict=True)
with torch.no_grad():
    assert torch.equal(loaded(x), expected)
assert "torch._inductor.compile_fx" not in sys.modules
print("equal")
"""


def test_an_artifact_in_bfloat16_runs_in_a_process_without_compiler_or_cache(tmp_path):
    compiled = thunder.jit(nn.Sequential(Layer().bfloat16(), nn.Identity()), executors=EXECUTORS)
    assert_equal_without_compiler(compiled, torch.randn(20, 48).bfloat16(), NARROW_LOADS, tmp_path)
