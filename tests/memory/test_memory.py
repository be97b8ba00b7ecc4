"""The memory of a program compared with the allocations of PyTorch's allocator."""

from __future__ import annotations

import functools

import pytest
import torch

import thunder_core as thunder
from tests.families import sample
from thunder_core.foundation.errors import WrongInputs
from thunder_core.workflow.benchmark.allocations import peak_allocated

EXECUTORS = (("torch",), ("inductor", "torch"))


@functools.cache
def llama(executors: tuple[str, ...]):
    model = sample("llama").model
    return model, thunder.jit(model, executors=executors), torch.randint(0, 512, (1, 128))


def train(compiled, ids):
    for parameter in compiled.parameters():
        parameter.grad = None
    results = compiled(input_ids=ids, labels=ids)  # still alive here, as the account says
    results.loss.backward()


@pytest.mark.parametrize("executors", EXECUTORS, ids="+".join)
def test_a_training_step_of_llama_takes_the_estimated_memory(executors):
    model, compiled, ids = llama(executors)
    model.train()
    train(compiled, ids)
    model.zero_grad()
    measured = peak_allocated(lambda: train(compiled, ids))
    use = thunder.examine_memory(compiled)
    assert {line.trace for line in use.lines} == {"computation", "backward"}
    assert use.own == pytest.approx(measured, rel=0.01)
    read = (*model.parameters(), model.model.rotary_emb.inv_freq, ids)
    assert use.outside == sum(tensor.nbytes for tensor in read)


@pytest.mark.parametrize("executors", EXECUTORS, ids="+".join)
def test_inference_of_llama_takes_the_estimated_memory(executors):
    model, compiled, ids = llama(executors)
    model.eval()
    with torch.no_grad():
        compiled(input_ids=ids)
        measured = peak_allocated(lambda: compiled(input_ids=ids))
    assert thunder.examine_memory(compiled).own == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("executors", EXECUTORS, ids="+".join)
def test_tensors_that_the_forward_saves_are_the_memory_left_after_it(executors):
    model, compiled, ids = llama(executors)
    model.train()
    train(compiled, ids)
    use = thunder.examine_memory(compiled)
    first = next(line for line in use.lines if line.trace == "backward")
    results = compiled(input_ids=ids, labels=ids)
    cache = [tensor for layer in results.past_key_values.layers for tensor in (layer.keys, layer.values)]
    returned = sum(tensor.untyped_storage().nbytes() for tensor in (results.loss, results.logits, *cache))
    assert first.held == use.outside + use.saved + returned + results.loss.nbytes  # with the gradient of the loss
    assert use.saved > 0


def test_a_program_without_a_backward_call_is_examined_with_its_derived_backward():
    compiled = thunder.jit(lambda x: torch.exp(x).sin().sum())
    x = torch.ones(256, requires_grad=True)
    out = compiled(x)
    before = thunder.examine_memory(compiled)
    out.backward()
    assert before.own == thunder.examine_memory(compiled).own == 3 * 1024 + 8
    assert before.saved == 1024


def test_a_program_that_autograd_records_names_memory_outside_of_the_account():
    compiled = thunder.jit(lambda x: (x * 2).exp_().sigmoid_())
    compiled(torch.ones(256, requires_grad=True))
    assert "autograd" in thunder.examine_memory(compiled).note
    assert "autograd" in str(thunder.examine_memory(compiled))


def test_the_account_in_words():
    compiled = thunder.jit(lambda x: (x + 1) * 2)
    compiled(torch.ones(256))
    assert str(thunder.examine_memory(compiled)) == (
        "peak 3,072 bytes, 1,024 of them outside, in line 2 of computation: torch.Tensor.mul"
    )


def test_uncompiled_functions_are_refused():
    with pytest.raises(WrongInputs):
        thunder.examine_memory(torch.exp)
