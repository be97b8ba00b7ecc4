"""The packed kernel for experts is chosen where it is measured to be faster, and the recipe `hf-moe` lists it."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from tests.executors.expert_products import KERNEL, Experts, claimed_in, even_ends, multiply
from tests.executors.kernel_choices import refusals_by, set_measured_times, use_own_cache
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.workflow.pipeline.session.trace_stats import kernel_choices
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_experts import EXECUTOR, PackedExperts, measurement
from thunder_executors.packed_experts.kernel import EXPERTS_LIBRARY
from thunder_executors.packed_experts.source import NAME

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache that contains the compiled kernel and no measurements."""
    use_own_cache(monkeypatch, tmp_path, EXPERTS_LIBRARY)


def compiled_experts():
    compiled = thunder.jit(Experts(), executors=(PackedExperts(), "torch"))
    with torch.no_grad():
        compiled((torch.randn(20, 16), even_ends(20, 4)))
    return compiled


def test_the_faster_kernel_is_chosen_and_its_times_are_kept(own_cache, monkeypatch):
    titles = set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
    (choice,) = kernel_choices(thunder.last_traces(compiled_experts())[-1])
    assert titles == ["20 x 16 to 24, 4 experts"]
    assert choice.choice == "20 x 16 to 24, 4 experts: packed-experts 1.00 ms, torch._grouped_mm 2.00 ms"
    compiled_experts()
    assert len(titles) == 1


def test_pytorch_computes_unless_the_kernel_is_clearly_faster(own_cache, monkeypatch):
    set_measured_times(monkeypatch, measurement, 0.98e-3, 1e-3)
    compiled = compiled_experts()
    assert claimed_in(compiled) == []
    ((reason, count),) = refusals_by(compiled, KERNEL)
    assert reason.startswith("PyTorch multiplies 20 x 16 to 24, 4 experts: packed-experts ")
    assert count == 1


def test_a_kernel_that_computes_other_values_is_not_chosen(own_cache, monkeypatch):
    monkeypatch.setattr(KernelLibrary, "function", lambda self, name: lambda *args: args[3].zero_())
    ((reason, _),) = refusals_by(compiled_experts(), KERNEL)
    assert "with other values" in reason


def test_nothing_is_measured_without_a_tuning_budget(own_cache, monkeypatch):
    titles = set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
    with tuning(0):
        compiled = compiled_experts()
    assert (titles, claimed_in(compiled), refusals_by(compiled, KERNEL)) == ([], [], [])
    with tuning(1e-9):
        compiled = compiled_experts()
    assert (titles, claimed_in(compiled)) == ([], [])
    assert refusals_by(compiled, KERNEL) == [("it was not measured in the time that --tune allows", 1)]


MEASURED = {
    "single row": ((1, 8, 64, 64), (1, 1, 64, 64)),
    "fewer rows than experts": ((2, 8, 64, 64), (2, 1, 64, 64)),
    "several rows": ((40, 4, 64, 64), (4, 10, 64, 64)),
    "no rows": ((0, 4, 64, 64), (1, 1, 64, 64)),
    "large weights": ((6, 4, 8192, 2048), (1, 2, 8192, 1024)),
    "many rows": ((4096, 2, 1024, 2048), (1, 2048, 1024, 448)),
}
"""The number of rows, experts, depth and columns; and the measured experts, rows of each, depth and columns."""


@pytest.mark.parametrize("name", MEASURED)
def test_measurement_gives_times_near_its_estimate(name, monkeypatch):
    found = []
    monkeypatch.setattr("thunder_executors.packed_experts.times_of", lambda products, _: found.append(products))
    (rows, experts, depth, columns), measured = MEASURED[name]
    compiled = thunder.jit(multiply, executors=(PackedExperts(), "torch"))
    weights = torch.zeros(experts, columns, depth)
    with torch.no_grad(), tuning(10):
        compiled(torch.zeros(rows, depth), weights, even_ends(rows, experts))
    (products,) = found
    sizes = measurement.MeasuredSizes.of(products)
    assert (sizes.experts, sizes.rows, sizes.depth, sizes.columns) == measured
    state = torch.random.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        times = measurement.measure(products, EXPERTS_LIBRARY.function(NAME))
    assert torch.equal(state, torch.random.get_rng_state())
    scale = max(1, min(experts, rows)) * columns / (sizes.experts * sizes.columns)
    assert 0 < times.kernel < 10 * scale * (sizes.seconds + 1e-5)
    assert 0 < times.library < 10 * scale * (sizes.seconds + 1e-5)
    assert measurement.measuring_seconds(products) < 1
    assert times.agrees


def test_the_recipe_claims_the_products_of_a_model(own_cache, monkeypatch):
    from transformers import MixtralConfig, MixtralForCausalLM

    set_measured_times(monkeypatch, measurement, 1e-3, 2e-3)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = MixtralForCausalLM(MixtralConfig(vocab_size=64, num_hidden_layers=2, num_local_experts=4, **sizes)).eval()
    ids = torch.randint(3, 60, (2, 9))
    counts, others = {}, ("packed-linear", "packed-attention", "inductor")  # these would take time to compile
    for without in ((), ("packed-experts",)):
        compiled = thunder.compile(model, "hf-moe", symbolic=(), without=(*without, *others))
        with torch.no_grad():
            found, expected = compiled(input_ids=ids).logits, model(input_ids=ids).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        counts[without] = len(claimed_in(compiled))
    assert counts == {(): 4, ("packed-experts",): 0}
