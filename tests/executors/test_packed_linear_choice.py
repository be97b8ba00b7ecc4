"""The packed linear kernel is chosen where it is measured to be faster, and its times are kept and shown."""

from __future__ import annotations

import io
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn.functional import linear

import thunder_core as thunder
from tests.executors.kernel_choices import refusals_by, set_measured_times, use_own_cache
from tests.executors.packed_layers import KERNEL, Layer, claimed_in
from thunder_cli.views.outcome import choices_view
from thunder_core.backend.cache import Store
from thunder_core.backend.claiming import kernel_times
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.tracing.extension import processor
from thunder_core.tracing.ir.proxy import tensor_proxy
from thunder_core.workflow.pipeline.session.executors import unused_executors
from thunder_core.workflow.pipeline.session.trace_stats import kernel_choices
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_linear import EXECUTOR, PackedLinear, measurement
from thunder_executors.packed_linear.kernel import library_of
from thunder_executors.packed_linear.measurement import Times
from thunder_executors.packed_linear.product import Product
from thunder_executors.packed_linear.product_kinds import FLOAT32
from thunder_executors.packed_linear.source import NAME

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache that contains the compiled kernel and no measurements."""
    use_own_cache(monkeypatch, tmp_path, library_of(FLOAT32))


def compiled_layers(*layers: Layer):
    compiled = thunder.jit(nn.Sequential(*layers), executors=(PackedLinear(), "torch"))
    with torch.no_grad():
        compiled(torch.randn(20, layers[0].linear.in_features))
    return compiled


def test_the_faster_kernel_is_chosen_and_its_times_are_kept(own_cache, monkeypatch):
    titles = set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
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
    set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
    choices = kernel_choices(thunder.last_traces(compiled_layers(Layer(48, 48)))[-1])
    console = Console(width=120, file=io.StringIO())
    for view in choices_view(SimpleNamespace(choices=choices)):
        console.print(view)
    assert (
        "20 x 48 to 48, with bias: packed-linear 1.00 ms, torch.nn.functional.linear 2.00 ms" in console.file.getvalue()
    )


@pytest.mark.parametrize("kernel", [2e-3, 1e-3, 0.98e-3])
def test_the_library_multiplies_unless_the_kernel_is_clearly_faster(own_cache, monkeypatch, kernel):
    set_measured_times(monkeypatch, measurement, kernel, 1e-3)
    compiled = compiled_layers(Layer(48, 48), Layer(48, 48))
    assert claimed_in(compiled) == []
    ((reason, count),) = refusals_by(compiled, KERNEL)
    assert reason.startswith("PyTorch multiplies 20 x 48 to 48, with bias: packed-linear ")
    assert count == 2
    assert [*unused_executors([thunder.last_traces(compiled)[-1]])] == []


def test_a_kernel_that_computes_other_values_is_not_chosen(own_cache, monkeypatch):
    monkeypatch.setattr(KernelLibrary, "function", lambda self, name: lambda *args: args[3].zero_())
    compiled = compiled_layers(Layer(48, 48))
    assert claimed_in(compiled) == []
    ((reason, _),) = refusals_by(compiled, KERNEL)
    assert "with other values" in reason


def test_nothing_is_measured_if_tuning_is_off(own_cache, monkeypatch):
    titles = set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
    with tuning(0):
        compiled = compiled_layers(Layer())
    assert (titles, claimed_in(compiled)) == ([], [])
    assert refusals_by(compiled, KERNEL) == []


def test_layers_beyond_the_tuning_budget_are_left_to_the_library(own_cache, monkeypatch):
    titles = set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
    with tuning(1e-6):
        compiled = compiled_layers(Layer())
    assert (titles, claimed_in(compiled)) == ([], [])
    assert refusals_by(compiled, KERNEL) == [("it was not measured in the time that --tune allows", 1)]


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


@pytest.mark.parametrize(("depth", "columns"), [(64, 8192), (512, 1376), (1376, 512), (16384, 64)])
def test_products_in_a_measurement_are_about_one(depth, columns):
    """Larger products would give denormal numbers in activations, which are slow."""
    weight = next(measurement.cold_weights(measurement.pattern(2 * depth * columns), (columns, depth)))
    products = linear(measurement.input_pattern(256, depth, torch.float32), weight)
    assert 0.1 < products.abs().median() < 1
    assert products.abs().max() < 80  # exp(-88) is denormal


def test_another_compiler_is_another_key_and_the_same_name_for_ranks(monkeypatch):
    keys = []
    for version in ("g++ 13", "g++ 14"):
        monkeypatch.setattr(kernel_times, "compiler_version", lambda name, version=version: version)
        keys.append(kernel_times.key_on_processor("times", "a product", "source"))
    assert keys[0].digest != keys[1].digest
    assert kernel_times.name_for_ranks(keys[0]) == kernel_times.name_for_ranks(keys[1])


@pytest.mark.parametrize(
    ("seconds", "expected", "calls"),
    [
        ((0.03, 0.001, 0.02), {"kernel": 0.02, "library": 0.001}, 3),  # clear, also after the repetition
        ((0.03, 0.001, 0.002), {"kernel": 0.002, "library": 0.002}, 3 + 8),  # the first call was interrupted
        ((0.002, 0.001), {"kernel": 0.002, "library": 0.002}, 2 + 8),
    ],
)
def test_slower_single_call_is_repeated_before_it_decides(monkeypatch, seconds, expected, calls):
    measured = []

    def pass_seconds(_call, _weights, count):
        measured.append(count)
        return seconds[len(measured) - 1] if len(measured) <= len(seconds) else 0.002 * count

    monkeypatch.setattr(measurement, "pass_seconds", pass_seconds)
    weights = {"kernel": iter(()), "library": iter(())}
    found = measurement.seconds_of({"kernel": len, "library": len}, weights, 5)
    assert found == pytest.approx(expected)
    assert len(measured) == calls


def test_measured_kernel_matches_a_real_measurement(own_cache):
    compiled = compiled_layers(Layer(64, 64))
    trace = thunder.last_traces(compiled)[-1]
    told = [entry.choice for entry in kernel_choices(trace)] or [reason for reason, _ in refusals_by(compiled, KERNEL)]
    assert "torch.nn.functional.linear" in told[0]


def test_a_slower_activation_leaves_the_product_to_the_kernel(own_cache, monkeypatch):
    def measure(product, _function):
        return Times(3e-3 if product.activation else 1e-3, 2e-3)

    monkeypatch.setattr(measurement, "measure", measure)
    compiled = thunder.jit(nn.Sequential(Layer(48, 48), nn.SiLU()), executors=(PackedLinear(), "torch"))
    with torch.no_grad():
        compiled(torch.randn(20, 48))
    assert [len(call.subsymbols) for call in claimed_in(compiled)] == [1]
    assert refusals_by(compiled, KERNEL) == []


def test_the_title_of_a_measurement_names_the_activation(own_cache, monkeypatch):
    titles = set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
    compiled = thunder.jit(
        nn.Sequential(Layer(48, 48), nn.GELU(approximate="tanh")), executors=(PackedLinear(), "torch")
    )
    with torch.no_grad():
        compiled(torch.randn(20, 48))
    assert titles == ["20 x 48 to 48, with bias, gelu by tanh"]


@pytest.mark.parametrize(
    ("cache", "free", "expected"),
    [(0, None, 64), (32, None, 64), (96, None, 192), (480, None, 256), (96, 800, 100), (96, 8, 64)],
)
def test_the_pool_of_weights_is_twice_the_cache_within_bounds(monkeypatch, cache, free, expected):
    monkeypatch.setattr(measurement, "last_cache_bytes", lambda: cache << 20)
    monkeypatch.setattr(measurement, "available_memory", lambda: None if free is None else free << 20)
    assert measurement.pool_bytes.__wrapped__() == expected << 20


def test_the_kernel_and_the_library_do_not_read_the_same_weights_after_each_other():
    numbers, shape = torch.arange(64.0 * 40), (4, 8)
    first = [weight[0, 0].item() for weight in islice(measurement.cold_weights(numbers, shape), 200)]
    second = [weight[0, 0].item() for weight in islice(measurement.cold_weights(numbers, shape, from_middle=True), 200)]
    assert set(first) == set(second)
    assert abs(first[0] - second[0]) >= numbers.numel() // 3


@pytest.mark.parametrize(
    ("sizes", "expected"), [(("32K", "1024K", "32768K"), 32 << 20), (("480M",), 480 << 20), ((), 0), (("",), 0)]
)
def test_the_size_of_the_last_cache_is_read(monkeypatch, tmp_path, sizes, expected):
    for index, size in enumerate(sizes):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    monkeypatch.setattr(processor, "CACHES", tmp_path)
    assert processor.last_cache_bytes() == expected
