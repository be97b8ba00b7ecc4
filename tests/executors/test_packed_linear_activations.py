"""The packed linear kernel computes an activation that follows the product."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import linear

import thunder_core as thunder
from tests.executors.packed_layers import EXECUTORS, Layer, claimed_in
from thunder_executors.packed_linear import EXECUTOR
from thunder_executors.packed_linear.activations import GELU, GELU_TANH, RELU, SILU

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


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
