"""The packed attention kernel is chosen where it is measured to be faster."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from tests.executors.kernel_choices import refusals_by, set_measured_times, use_own_cache
from tests.executors.packed_heads import KERNEL, Heads, attend, claimed_in, heads
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.workflow.pipeline.session.trace_stats import kernel_choices
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_attention import EXECUTOR, PackedAttention, measurement
from thunder_executors.packed_attention.kernel import ATTENTION_LIBRARY
from thunder_executors.packed_attention.source import NAME

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache that contains the compiled kernel and no measurements."""
    use_own_cache(monkeypatch, tmp_path, ATTENTION_LIBRARY)


def compiled_heads(**options):
    compiled = thunder.jit(Heads(**options), executors=(PackedAttention(), "torch"))
    with torch.no_grad():
        compiled(torch.randn(2, 20, 64))
    return compiled


def test_the_faster_kernel_is_chosen_and_its_times_are_kept(own_cache, monkeypatch):
    titles = set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
    (choice,) = kernel_choices(thunder.last_traces(compiled_heads(is_causal=True))[-1])
    assert titles == ["2 x 4 x 20 x 16 to 20 keys, causal"]
    assert choice.choice == (
        "2 x 4 x 20 x 16 to 20 keys, causal: packed-attention 1.00 ms, "
        "torch.nn.functional.scaled_dot_product_attention 2.00 ms"
    )
    compiled_heads(is_causal=True)
    assert len(titles) == 1


def test_pytorch_computes_unless_the_kernel_is_clearly_faster(own_cache, monkeypatch):
    set_measured_times(monkeypatch, measurement, 0.98e-3, 1e-3)
    compiled = compiled_heads()
    assert claimed_in(compiled) == []
    ((reason, count),) = refusals_by(compiled, KERNEL)
    assert reason.startswith("PyTorch computes attention of 2 x 4 x 20 x 16 to 20 keys: packed-attention ")
    assert count == 1


def test_a_kernel_that_computes_other_values_is_not_chosen(own_cache, monkeypatch):
    monkeypatch.setattr(KernelLibrary, "function", lambda self, name: lambda *args: args[4].zero_())
    ((reason, _),) = refusals_by(compiled_heads(), KERNEL)
    assert "with other values" in reason


def test_nothing_is_measured_without_a_tuning_budget(own_cache, monkeypatch):
    titles = set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
    with tuning(0):
        compiled = compiled_heads()
    assert (titles, claimed_in(compiled), refusals_by(compiled, KERNEL)) == ([], [], [])
    with tuning(1e-9):
        compiled = compiled_heads()
    assert (titles, claimed_in(compiled)) == ([], [])
    assert refusals_by(compiled, KERNEL) == [("it was not measured in the time that --tune allows", 1)]


MEASURED = {
    "small": lambda: (heads(1, 1, 1, 1), heads(1, 1, 1, 1), None, {}),
    "masked": lambda: (heads(2, 4, 30, 16), heads(2, 4, 40, 16), torch.rand(2, 1, 1, 40) > 0.5, {}),
    "with a float mask": lambda: (heads(2, 4, 30, 16), heads(2, 4, 40, 16), torch.randn(30, 40), {"scale": 0.3}),
    "grouped": lambda: (heads(2, 4, 30, 16), heads(2, 2, 40, 16), None, {"enable_gqa": True, "is_causal": True}),
    "large": lambda: (heads(8, 32, 1024, 64), heads(8, 32, 1024, 64), None, {}),
    "large and causal": lambda: (heads(2, 8, 2048, 64), heads(2, 8, 2048, 64), None, {"is_causal": True}),
}


@pytest.mark.parametrize("name", MEASURED)
def test_measurement_gives_times_near_its_estimate(name, monkeypatch):
    found = []
    monkeypatch.setattr(measurement, "cached_times", lambda *_: None)
    monkeypatch.setattr("thunder_executors.packed_attention.times_of", lambda attention, _: found.append(attention))
    query, key, mask, options = MEASURED[name]()
    compiled = thunder.jit(lambda *tensors: attend(*tensors, **options), executors=(PackedAttention(), "torch"))
    with torch.no_grad(), tuning(10):
        compiled(query, key, key, mask)
    (attention,) = found
    state = torch.random.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        times = measurement.measure(attention, ATTENTION_LIBRARY.function(NAME))
    assert torch.equal(state, torch.random.get_rng_state())
    estimate = measurement.call_seconds(attention.hints)
    assert 0 < times.kernel < 10 * (estimate + 1e-5)
    assert 0 < times.library < 10 * (estimate + 1e-5)
    assert measurement.measuring_seconds(attention) < 1
    assert times.agrees
