"""The packed linear kernel reads weights that change, are trained or are frozen as PyTorch does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thunder_core as thunder
from tests.executors.packed_layers import EXECUTORS, Layer, claimed_in
from thunder_executors.packed_linear import EXECUTOR

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


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
