"""Saved and recomputed tensors: within a memory budget, and never recomputed from values that have changed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_core.compilation.compiler import last_program
from thunder_core.foundation.errors import BadOption
from thunder_core.passes.autodiff.recomputation.recompute_units import units_of
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.benchmark.allocations import peak_allocated

WIDTH, COUNT = 64, 8


def layers(x, weights):
    for weight in weights:
        x = x + functional.dropout(functional.gelu(functional.layer_norm(x, (WIDTH,)) @ weight) @ weight.t(), 0.1)
    return x.square().mean()


def given():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, WIDTH, generator=generator).requires_grad_()
    return x, [torch.randn(WIDTH, WIDTH, generator=generator).mul_(0.1).requires_grad_() for _ in range(COUNT)]


def step(program):
    x, weights = given()
    torch.manual_seed(1)
    out = program(x, weights)
    out.backward()
    return [out, *(tensor.grad for tensor in (x, *weights))]


@pytest.fixture(scope="module", params=[("torch",), ("inductor", "torch")], ids="+".join)
def programs(request):
    """Return the program by budget, each after a step."""
    found = {
        budget: thunder.jit(layers, executors=request.param, memory_budget=budget)
        for budget in (1.0, 0.6, 0.3, 0.0, 300_000)
    }
    for program in found.values():
        step(program)
    return found


def test_gradients_are_equal_for_all_budgets(programs):
    expected = step(layers)
    for program in programs.values():
        torch.testing.assert_close(step(program), expected, rtol=1e-3, atol=1e-5)
        assert last_program(program).no_backward_reason == ""


def test_saved_tensors_are_within_the_budget(programs):
    saved = {budget: thunder.examine_memory(program).saved for budget, program in programs.items()}
    slack = 4 * 5056 * COUNT  # states of the random number generator are saved too
    assert saved[0.6] <= 0.6 * saved[1.0] + slack
    assert saved[300_000] <= max(300_000, saved[0.0])
    assert saved[1.0] > saved[0.6] > saved[0.3] >= saved[0.0] > 0


def test_smaller_budget_takes_less_memory_as_estimated(programs):
    measured = {budget: peak_allocated(lambda one=one: step(one)) for budget, one in programs.items()}
    assert max(measured[0.6], measured[0.3]) < 0.75 * measured[1.0]
    for budget, program in programs.items():
        given_here = (WIDTH * 256 + COUNT * WIDTH * WIDTH) * 4
        assert thunder.examine_memory(program).own + given_here == pytest.approx(measured[budget], rel=0.1)


def test_matrix_products_are_recomputed_with_a_budget_of_zero(programs):
    def products(program):
        lines = thunder.last_backward_traces(program)[0].at_level("aten")
        return sum(line.symbol.short_name == "default" and ".mm." in line.symbol.name for line in lines)

    assert products(programs[0.0]) >= products(programs[1.0]) + COUNT


def test_computation_without_repeats_is_divided_evenly():
    def program(x):
        for number in range(1, 30):
            x = getattr(torch, ("sin", "cos", "tanh", "exp", "sigmoid")[number * number % 5])(x)
        return x.sum()

    x = torch.linspace(0, 1, 4096, requires_grad=True)
    usual, tight = thunder.jit(program), thunder.jit(program, memory_budget=0.0)
    (expected,) = torch.autograd.grad(program(x), x)
    for item in (usual, tight):
        torch.testing.assert_close(torch.autograd.grad(item(x), x), (expected,))
    assert thunder.examine_memory(tight).own < 0.6 * thunder.examine_memory(usual).own


@pytest.mark.parametrize("budget", [-0.1, 1.5, float("nan"), True, None, "half", -5])
def test_invalid_budgets_are_refused(budget):
    with pytest.raises(BadOption, match="memory_budget"):
        thunder.jit(layers, memory_budget=budget)


def changed(x):
    mask = x.detach() > 0
    mask.logical_not_()
    weight = x.detach() + 1
    weight.mul_(3)
    return (torch.where(mask, x, x * 2) * weight).sin().sum()


@pytest.mark.parametrize("budget", [1.0, 0.0])
@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")], ids="+".join)
def test_written_tensor_is_recomputed_with_its_writes(executors, budget):
    found, expected = (torch.linspace(-1, 1, 64, requires_grad=True) for _ in range(2))
    thunder.jit(changed, executors=executors, memory_budget=budget)(found).backward()
    changed(expected).backward()
    torch.testing.assert_close(found.grad, expected.grad)


def test_lines_that_write_to_a_new_tensor_are_one_unit():
    compiled = thunder.jit(lambda x, y: (x.sin().mul_(2).cos(), y.add_(1)))
    with torch.no_grad():
        compiled(torch.ones(4), torch.ones(4))
    units = units_of(first(thunder.last_traces(compiled)))
    assert [(len(unit.bsyms), unit.is_not_recomputable) for unit in units] == [(2, False), (1, False), (1, True)]


def first(traces: list[Trace]) -> Trace:
    return traces[0]
