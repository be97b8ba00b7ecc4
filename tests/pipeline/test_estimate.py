"""The memory of a call is estimated before any allocation, and inputs that do not fit are refused."""

from __future__ import annotations

import re

import pytest
import torch

from thunder_core.foundation.errors import OutOfMemory
from thunder_core.workflow.benchmark.allocations import peak_allocated
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.memory.free_memory import is_out_of_memory
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session import estimate

MIB = 1 << 20


def sample(name: str) -> LoadedModel:
    """A small model."""
    return load_model(ModelRequest(sample=SAMPLES[name]))


@pytest.mark.parametrize(("name", "train"), [("llama", False), ("llama", True), ("bert", False), ("vit", True)])
def test_the_estimate_is_the_allocated_memory(name: str, train: bool, one_thread: None) -> None:
    loaded, purpose = sample(name), Purpose(train)
    with purpose.ready(loaded.model):
        one = purpose.inputs(loaded, batch=1, seq=32, seed=0)
        state = torch.get_rng_state()
        need = estimate.need_of(loaded, purpose, one, 4)
        assert torch.equal(state, torch.get_rng_state())
        assert all(parameter.grad is None for parameter in loaded.model.parameters())
        inputs = purpose.inputs(loaded, batch=4, seq=32, seed=0)
        measured = peak_allocated(lambda: purpose.call(loaded.model, loaded.model)(**inputs))
    assert need.peak == pytest.approx(measured, rel=0.06)
    assert 0 < need.kept <= need.peak


def test_model_that_reads_values_is_not_estimated_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, purpose = sample("llama"), Purpose()
    forward = loaded.model.forward
    monkeypatch.setattr(
        loaded.model, "forward", lambda **inputs: inputs["input_ids"].sum().item() and forward(**inputs)
    )
    example = purpose.inputs(loaded, batch=1, seq=8, seed=0)
    assert estimate.need_of(loaded, purpose, example, 4) is None
    monkeypatch.setattr(estimate, "free_memory", lambda device: MIB)
    estimate.require_memory(loaded, purpose, batch=4, seq=8, seed=0)
    with pytest.raises(OutOfMemory, match="the input of a call with batch 1000000"):
        estimate.require_memory(loaded, purpose, batch=1_000_000, seq=8, seed=0)


REFUSED = {
    "a batch": ({"batch": 1_000_000, "seq": 128}, "a call with batch 1000000 and sequence 128 needs about"),
    "a batch beyond all numbers": ({"batch": 10**30, "seq": 8}, "the input of a call"),
    "a sequence": ({"batch": 1, "seq": 10**12}, "a call with batch 1 and sequence 1000000000000 needs about"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_that_do_not_fit_into_memory_are_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, words = REFUSED[case]
    monkeypatch.setattr(estimate, "free_memory", lambda device: 64 << 30)
    with pytest.raises(OutOfMemory, match=words) as caught:
        estimate.require_memory(sample("llama"), Purpose(), seed=0, **sizes)
    assert (caught.value.code, caught.value.status) == ("TH0702", 7)
    assert "nothing was allocated" in caught.value.what


def test_the_advised_batch_fits_and_validation_needs_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = sample("llama")
    monkeypatch.setattr(estimate, "free_memory", lambda device: 8 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        estimate.require_memory(loaded, Purpose(), batch=10_000, seq=8, seed=0)
    fits = int(re.search(r"--batch (\d+)", caught.value.fix)[1])
    estimate.require_memory(loaded, Purpose(), batch=fits, seq=8, seed=0)
    with pytest.raises(OutOfMemory, match="the validation of a call with batch"):
        estimate.require_memory(loaded, Purpose(), batch=fits, seq=8, seed=0, validate=True)
    estimate.require_memory(loaded, Purpose(), batch=10_000, seq=8, seed=0, runs=False)


def test_small_inputs_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "free_memory", lambda device: 8 << 30)
    monkeypatch.setattr(estimate, "need_of", lambda *_: pytest.fail("it takes time"))
    estimate.require_memory(sample("llama"), Purpose(), batch=8, seq=128, seed=0)


def test_the_messages_of_the_allocator_are_recognized() -> None:
    for shape in ((1 << 45,), (1 << 62, 1 << 62)):
        with pytest.raises(RuntimeError) as caught:
            torch.empty(shape)
        assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
