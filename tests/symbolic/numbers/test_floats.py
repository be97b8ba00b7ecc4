"""A float that changes from call to call, such as a rate, is also a symbol in programs with gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder

FUNCTIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "product": lambda x, rate: x * rate,
    "quotient": lambda x, rate: (x / rate).softmax(0),
    "divided": lambda x, rate: rate / x,
    "difference": lambda x, rate: rate - x,
    "slope": lambda x, rate: functional.leaky_relu(x - 1, rate),
    "bound": lambda x, rate: x.clamp(max=rate),
    "chosen": lambda x, rate: torch.where(x > rate, x, rate),
    "weighted": lambda x, rate: torch.add(x, x * x, alpha=rate),
    "computed": lambda x, rate: x * (rate * 2 + 1) - rate / 3,
    "written": lambda x, rate: (x * 2).mul_(rate),
    "filled": lambda x, rate: x * torch.full((4,), rate),
    "both bounds": lambda x, rate: functional.hardtanh(x, -rate, rate),
    "branch": lambda x, rate: x * rate if rate > 0.4 else x - rate,
    "power": lambda x, rate: x.pow(rate) + x**rate,
    "power of a number": lambda x, rate: rate**x,
    "power, written": lambda x, rate: (x * 2).pow_(rate),
    "norm": lambda x, rate: functional.layer_norm(x, (4,), eps=rate),
    "norm of groups": lambda x, rate: functional.group_norm(x[None], 2, eps=rate),
    "norm of roots": lambda x, rate: functional.rms_norm(x, (4,), eps=rate),
    "norm of batches": lambda x, rate: functional.batch_norm(x.view(2, 2), None, None, training=True, eps=rate),
    "moving means": lambda x, rate: moving_means(x, rate),
    "between": lambda x, rate: torch.lerp(x, x * x, rate),
    "between, written": lambda x, rate: (x * 2).lerp_(x, rate),
    "celu": lambda x, rate: functional.celu(x - 1, rate),
    "elu": lambda x, rate: functional.elu(x - 1, rate),
    "softplus": lambda x, rate: functional.softplus(x, beta=rate, threshold=rate),
    "threshold": lambda x, rate: functional.threshold(x, rate + 0.2, rate),
    "attention": lambda x, rate: functional.scaled_dot_product_attention(*(x.view(1, 2, 2),) * 3, scale=rate),
    "attention of heads": lambda x, rate: functional.scaled_dot_product_attention(
        *(x.view(1, 1, 2, 2),) * 3, scale=rate
    ),
    "smoothed labels": lambda x, rate: functional.cross_entropy(
        x.view(2, 2), torch.tensor([0, 1]), label_smoothing=rate / 2
    ),
    "smoothed labels of any number": lambda x, rate: functional.cross_entropy(
        x.repeat(2, 1), torch.tensor([0, 1]), label_smoothing=rate / 2
    ),
    "loss by a delta": lambda x, rate: functional.huber_loss(x, x.detach() * 2, delta=rate),
    "loss by a beta": lambda x, rate: functional.smooth_l1_loss(x, x.detach() * 2, beta=rate),
    "loss by a margin": lambda x, rate: functional.triplet_margin_loss(x, x * 2, x * x, margin=rate, eps=rate / 10),
    "products and a sum": lambda x, rate: (
        torch.addmm(x, x.view(2, 2), x.view(2, 2), beta=rate, alpha=1 - rate)
        if x.dim() == 2
        else torch.addcmul(x, x, x, value=rate)
    ),
    "similar": lambda x, rate: functional.cosine_similarity(x, x * 2 - 1, dim=0, eps=rate),
    "mean of powers": lambda x, rate: functional.lp_pool1d(x[None], rate + 1, 2),
    "length": lambda x, rate: torch.linalg.vector_norm(x, rate * 2 / 3),
    "a constant": lambda x, rate: x * torch.tensor([rate, 1.0, 2.0, 0.0]),
    "padded": lambda x, rate: functional.pad(x, (1, 1), value=rate) ** 2,
    "limited": lambda x, rate: torch.nan_to_num(x.logit(rate / 10), nan=rate),
}
MOST = {"branch": 2}


def moving_means(x: Tensor, rate: float) -> Tensor:
    """Apply a norm in training mode, which writes to its running statistics."""
    mean, variance = torch.zeros(2), torch.ones(2)
    return functional.batch_norm(x.view(2, 2), mean, variance, training=True, momentum=rate) * mean


def gradient(function: Callable[..., Tensor], x: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    result = function(x, rate)
    return result.detach(), torch.autograd.grad((result * result).sum(), x)[0]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_a_program_with_gradients_serves_all_floats(name: str) -> None:
    compiled = thunder.jit(FUNCTIONS[name], cache="symbolic values")
    x = (torch.rand(4) + 0.5).requires_grad_()
    for number in (2, 3, 4, 6.5):
        found, wanted = (gradient(run, x, number / 7) for run in (compiled, FUNCTIONS[name]))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) <= MOST.get(name, 1)
    assert not thunder.last_backward_reason(compiled)


PLACES = (-1.5, -0.25, 0.0, 0.25, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 7.5, -3.0)


@pytest.mark.parametrize("name", ["power", "length", "between", "power of a number"])
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_values_with_special_formulas_have_separate_programs(name: str) -> None:
    """A power of zero, or a norm of order one or less, has its own program; one program serves the values between."""
    function = {**FUNCTIONS, "length": lambda x, rate: torch.linalg.vector_norm(x - 1, rate)}[name]
    compiled = thunder.jit(function, cache="symbolic values")
    x = torch.tensor([0.0, 0.5, 1.0, 2.0], requires_grad=True)
    for place in PLACES if name in ("power", "between") else [place for place in PLACES if place > 0]:
        found, wanted = (gradient(run, x, place) for run in (compiled, function))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert thunder.cache_misses(compiled) <= 7, thunder.recompile_reasons(compiled)


def test_a_rate_that_changes_by_default_makes_two_programs() -> None:
    compiled = thunder.jit(lambda x, rate: (x * rate).exp())
    x = torch.rand(4, requires_grad=True)
    for number in range(1, 6):
        found, wanted = (gradient(run, x, number / 7) for run in (compiled, lambda x, rate: (x * rate).exp()))
        torch.testing.assert_close(found, wanted)
    assert thunder.cache_misses(compiled) == 2


def test_branch_on_a_float_is_a_constraint_on_floats() -> None:
    """A constraint on a float also distinguishes the floats between zero and one."""
    compiled: Any = thunder.jit(lambda x, rate: functional.dropout(x, rate * 0.5), cache="symbolic values")
    x = torch.ones(4, requires_grad=True)
    for number in (0.25, 0.5, 1.0):
        torch.manual_seed(0)
        found = compiled(x, number)
        torch.manual_seed(0)
        torch.testing.assert_close(found, functional.dropout(x, number * 0.5))


def test_region_does_not_treat_a_float_as_an_integer() -> None:
    def scaled(x: Tensor, rate: float) -> Tensor:
        return (x.sin() * rate + x.cos()).exp()

    compiled = thunder.jit(scaled, executors=["inductor", "torch"], cache="symbolic values")
    x = torch.rand(4, requires_grad=True)
    for rate in (0.3, 0.9, 1.7):
        torch.testing.assert_close(gradient(compiled, x, rate), gradient(scaled, x, rate))
    assert thunder.cache_misses(compiled) == 1


SEVERAL: dict[str, tuple[Callable[..., Tensor], list[tuple[float, ...]]]] = {
    "equal rates of a norm": (
        lambda x, rate, eps: functional.batch_norm(x, None, None, training=True, momentum=rate, eps=eps),
        [(0.2, 0.2), (0.4, 0.1), (0.1, 0.4), (0.3, 0.3)],
    ),
    "equal exponents": (
        lambda x, power, eps: functional.pairwise_distance(x, x * x, power, eps),
        [(3.0, 3.0), (3.0, 4.0), (4.0, 3.0)],
    ),
    "three floats beyond two": (
        lambda x, margin, power, eps: functional.triplet_margin_loss(x, x * x, -x, margin=margin, p=power, eps=eps),
        [(2.5, 3.0, 4.0), (3.0, 4.0, 2.5), (3.0, 3.0, 3.0), (5.0, 2.5, 2.5)],
    ),
    "an infinite power": (lambda x, power: x.norm(power), [(3.0,), (float("inf"),), (4.0,)]),
    "an infinite length": (torch.linalg.vector_norm, [(3.0,), (float("inf"),), (-3.0,), (-float("inf"),)]),
    "an infinite norm of rows": (
        lambda x, power: torch.renorm(x, power, 0, 1.0),
        [(3.0,), (float("inf"),), (4.0,)],
    ),
}


@pytest.mark.parametrize("cache", ["symbolic values", "constant values"])
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_floats_that_are_equal_at_one_call_stay_separate(name: str, cache: str) -> None:
    """Equality, order and being finite are constraints: a program never serves a float of another outcome."""
    function, calls = SEVERAL[name]
    compiled: Any = thunder.jit(function, cache=cache)
    x = (torch.rand(4, 3) + 0.5).requires_grad_()
    for floats in calls:
        found, wanted = compiled(x, *floats), function(x, *floats)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        ours, theirs = (torch.autograd.grad((result * result).sum(), x)[0] for result in (found, wanted))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def counted(stop: float, step: float) -> Tensor:
    numbers = torch.arange(0, stop, step)
    return numbers.view(numbers.shape[0], 1) + numbers


def counted_from_tensors(stop: float, step: float) -> Tensor:
    return counted(torch.tensor(stop).item(), torch.tensor(step).item())


def counted_with_the_end(stop: float, step: float) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `torch.range` is deprecated
        numbers = torch.range(0, stop, step)
    return numbers.view(numbers.shape[0], 1) + numbers


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [counted, counted_from_tensors, counted_with_the_end])
def test_floats_that_decide_the_number_of_elements_match_eager(program: Callable[..., Tensor], grad: bool) -> None:
    compiled = thunder.jit(program, cache="symbolic values")
    with torch.set_grad_enabled(grad):
        for stop, step in ((4.0, 5.0), (0.5, 3.25), (7.0, 5.0), (12.0, 0.5)):
            torch.testing.assert_close(compiled(stop, step), program(stop, step))
    assert thunder.cache_misses(compiled) == (1 if program is counted else 4)


def constant_times(x: Tensor, rate: float) -> Any:
    product = torch.tensor(3.0) * rate
    return x * product.item() if product > 6 else x


def part_of_a_constant_written(x: Tensor, rate: float) -> Any:
    constant = torch.tensor([1.0, 2.0])
    constant[0].mul_(rate)
    return x * constant.sum().item() if constant.sum() > 4 else x + constant[0].item()


def constant_made(x: Tensor, rate: float) -> Any:
    constant = torch.tensor(rate)
    return x * constant.item() if constant > 2 else x - constant.item()


def constant_beside(x: Tensor, rate: float) -> Any:
    constant = torch.tensor(1.5)
    total = constant + rate
    torch.mul(constant, rate, out=constant)
    return x * rate, total.item(), constant.item()


def value_decides(x: Tensor, rate: float) -> Any:
    return x * 2 if (x * rate).sum() > 6 else x


CONSTANTS = {
    function.__name__: function
    for function in (constant_times, part_of_a_constant_written, constant_made, constant_beside, value_decides)
}


@pytest.mark.parametrize("cache", ["symbolic values", "constant values"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CONSTANTS)
def test_constant_tensors_hold_no_placeholder_values_of_floats(name: str, grad: bool, cache: str) -> None:
    program = CONSTANTS[name]
    compiled = thunder.jit(program, cache=cache)
    x = torch.arange(4.0)
    with torch.set_grad_enabled(grad):
        for rate in (1.0, 3.0, 0.0, 4.5, -1.0, 2.5):
            torch.testing.assert_close(compiled(x, rate), program(x, rate), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) <= (4 if cache == "constant values" else 2)


SIGNED: dict[str, Callable[[Tensor, float], Tensor]] = {
    "padded": lambda x, rate: functional.pad(x, (1, 1), value=rate),
    "padded with what is computed": lambda x, rate: functional.pad(x, (1, 1), value=rate * 2),
    "divisor": lambda x, rate: x / rate,
    "chosen": lambda x, rate: x * (rate and 3.0),
}


@pytest.mark.parametrize("cache", ["symbolic values", "constant values"])
@pytest.mark.parametrize("rates", [(0.0, -0.0, 0.0), (-0.0, 0.0), (1.0, 2.0, -0.0, 0.0), (2.0, 1.0, 0.0, -0.0)])
@pytest.mark.parametrize("name", SIGNED)
def test_zeros_keep_their_signs(name: str, rates: tuple[float, ...], cache: str) -> None:
    compiled = thunder.jit(SIGNED[name], cache=cache)
    for rate in rates:
        x = torch.tensor([1.0, -2.0], requires_grad=True)
        (ours, inner), (theirs, outer) = (
            ((result := function(x, rate)).tolist(), torch.autograd.grad(result.sum(), x)[0].tolist())
            for function in (compiled, SIGNED[name])
        )
        assert repr((ours, inner)) == repr((theirs, outer)), rate
