"""The `debug` executor: a wrong executor is found and named, and right programs pass, forward and backward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import thunder_core as thunder
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.foundation.errors import WrongResult


def implementing(operation, function, **options):
    """An executor called `wrong` that runs one operation with the given function."""
    executor = OperatorExecutor("wrong")
    executor.implements(operation, **options)(function)
    return executor


def program(x, w):
    y = torch.relu(x) @ w
    z = torch.tanh(y) + 1
    return z.sum(0), y


def inputs(training=False):
    torch.manual_seed(0)
    return torch.randn(4, 3).requires_grad_(training), torch.randn(3, 5).requires_grad_(training)


WRONG = [
    (torch.tanh, lambda x: torch.tanh(x) * 1.001, "largest difference"),
    (torch.tanh, lambda x: torch.tanh(x).double(), "dtype torch.float64"),
    (torch.tanh, lambda x: torch.tanh(x).t().contiguous().t(), "strides"),
    (torch.tanh, lambda x: torch.tanh(x)[:, :2], "shape"),
    (torch.tanh, lambda x: x.tanh_(), "the input `"),
    (torch.tanh, lambda x: (torch.tanh(x), x), "structure|is of class tuple"),
    (torch.tanh, lambda x: torch.tanh(x) + torch.rand(()) * 0, "random numbers"),
    (torch.tanh, lambda x: torch.where(x > 0, torch.tanh(x), torch.nan), "is nan at"),
    (torch.relu, lambda x: x.data.clamp_(min=0), "the input `x`"),
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("operation", "function", "found"), WRONG)
def test_a_wrong_executor_is_found_and_named(operation, function, found, training):
    executor = implementing(operation, function)
    compiled = thunder.jit(program, executors=[executor, "debug"])
    with pytest.raises(WrongResult, match=found) as wrong:
        compiled(*inputs(training))
    name = operation.__name__
    assert f"the executor wrong computes a wrong result for torch.{name}" in wrong.value.what
    expected = next(line for line in range(1, 40) if name in SOURCE[program.__code__.co_firstlineno + line - 1])
    assert wrong.value.where.lineno == program.__code__.co_firstlineno + expected


def test_without_the_debug_executor_the_wrong_result_is_returned():
    compiled = thunder.jit(program, executors=[implementing(*WRONG[0][:2])])
    assert not torch.allclose(compiled(*inputs())[0], program(*inputs())[0], rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("claims", [False, True])
def test_a_right_program_passes(claims, training):
    right = implementing(torch.tanh, lambda x: 1 - 2 / (torch.exp(2 * x) + 1))
    compiled = thunder.jit(program, executors=["debug", right] if claims else ["sdpa", "debug"])
    actual, expected = inputs(training), inputs(training)
    for _ in range(2):
        for ours, wanted in zip(compiled(*actual), program(*expected), strict=True):
            torch.testing.assert_close(ours, wanted)
    if training:
        compiled(*actual)[0].sum().backward()
        program(*expected)[0].sum().backward()
        torch.testing.assert_close([tensor.grad for tensor in actual], [tensor.grad for tensor in expected])
    checked = thunder.checks(compiled)
    derived = [check.left_out for check in checked if not check.compared]
    assert derived == (["it is PyTorch's own derivative of an executor's function"] if training and claims else [])
    assert bool(checked) == claims


def test_a_wrong_backward_is_found():
    wrong = implementing(torch.ops.aten.mul.Tensor, lambda x, y: torch.mul(x, y) * 1.01)
    compiled = thunder.jit(lambda x: x.sin(), executors=[wrong, "debug"])
    x = torch.randn(3, requires_grad=True)
    loss = compiled(x).sum()
    with pytest.raises(
        WrongResult, match=r"the executor wrong computes a wrong result for torch.ops.aten.mul.Tensor: `v1`"
    ):
        loss.backward()


def test_the_first_wrong_line_is_named():
    executor = OperatorExecutor("wrong")
    for operation in (torch.sin, torch.cos):
        executor.implements(operation)(lambda x, operation=operation: operation(x) + 0.5)
    compiled = thunder.jit(lambda x: torch.cos(torch.sin(x)), executors=[executor, "debug"])
    with pytest.raises(WrongResult, match=r"torch.sin"):
        compiled(torch.ones(2))


def test_random_operations_are_compared_with_the_same_random_numbers():
    same = implementing(F.dropout, lambda x, p=0.5, training=True, inplace=False: F.dropout(x, p, training))
    compiled = thunder.jit(lambda x: F.dropout(x, 0.4) + torch.rand(3), executors=[same, "debug"])
    x = torch.ones(4, 3)
    for _ in range(2):
        torch.manual_seed(3)
        actual, state = compiled(x), torch.get_rng_state()
        torch.manual_seed(3)
        assert torch.equal(actual, F.dropout(x, 0.4) + torch.rand(3))
        assert torch.equal(state, torch.get_rng_state())
    assert [check.compared for check in thunder.checks(compiled)] == [2]
    others = implementing(F.dropout, lambda x, p=0.5, training=True, inplace=False: F.dropout(x.flip(0), p).flip(0))
    with pytest.raises(WrongResult, match=r"F?.*dropout"):
        thunder.jit(lambda x: F.dropout(x, 0.4), executors=[others, "debug"])(x)


def test_in_place_operations_are_compared_on_copies():
    right = implementing(torch.Tensor.mul_, lambda x, y: x.copy_(x * y), writes=True)
    wrong = implementing(torch.Tensor.mul_, lambda x, y: x.copy_(x * y + 1), writes=True)

    def writes(x):
        x[0].mul_(2)
        return x.sum()

    x, y = torch.ones(2, 2), torch.ones(2, 2)
    compiled = thunder.jit(writes, executors=[right, "debug"])
    assert compiled(x) == writes(y)
    assert torch.equal(x, y)
    assert [check.compared for check in thunder.checks(compiled)] == [1]
    with pytest.raises(WrongResult, match="mul_"):
        thunder.jit(writes, executors=[wrong, "debug"])(x)


@pytest.mark.parametrize("addend", [1, 2])
def test_a_function_that_is_differentiated_may_write_to_its_own_results(addend):
    executor = implementing(torch.tanh, lambda x: torch.tanh(x).mul_(0.5).mul_(2 * addend))
    compiled = thunder.jit(program, executors=[executor, "debug"])
    if addend == 1:
        compiled(*inputs(training=True))
        assert [check.compared for check in thunder.checks(compiled)] == [1]
        return
    with pytest.raises(WrongResult, match="largest difference"):
        compiled(*inputs(training=True))


def test_an_executor_that_is_no_worse_than_eager_passes():
    def kahan(x):
        return x.double().sum().float()

    x = torch.cat([torch.full((4097,), 1e4), torch.full((4097,), -1e4), torch.full((1,), 0.1)])[torch.randperm(8195)]
    compiled = thunder.jit(torch.sum, executors=[implementing(torch.sum, kahan), "debug"])
    assert abs(compiled(x) - 0.1) < 1e-6
    assert thunder.checks(compiled)[0].compared == 1


def test_operations_that_cannot_be_compared_are_counted():
    same = implementing(torch.empty_like, torch.empty_like)
    compiled = thunder.jit(lambda x: torch.empty_like(x).fill_(1) + 1, executors=[same, "debug"])
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    (check,) = thunder.checks(compiled)
    assert check.compared == 0
    assert "memory" in check.left_out


@pytest.mark.parametrize("addend", [1, 2])
def test_fused_regions_are_checked(addend):
    class Fusing(thunder.FusionExecutor):
        name, claims, symbolic_sizes = "fusing", "everything", True

        def fuses(self, bsym):
            return bsym.symbol.short_name in ("relu", "tanh", "add")

        def compile(self, regions):
            def run(x):
                return torch.tanh(torch.relu(x)) + addend

            return [thunder.Fused(lambda name: run) for _ in regions]

    compiled = thunder.jit(lambda x: torch.tanh(torch.relu(x)) + 1, executors=[Fusing(), "debug"])
    if addend == 1:
        assert torch.equal(compiled(torch.ones(3)), torch.tanh(torch.ones(3)) + 1)
        return
    with pytest.raises(
        WrongResult, match=r"the executor fusing computes a wrong result for torch.relu, torch.tanh, torch.Tensor.add"
    ):
        compiled(torch.ones(3))


def test_symbolic_sizes():
    same = implementing(torch.relu, lambda x: x.clamp(min=0))
    compiled = thunder.jit(program, executors=[same, "debug"], symbolic=["x.size(0)"])
    for rows in (2, 3, 5):
        x, w = torch.randn(rows, 3), torch.randn(3, 5)
        torch.testing.assert_close(compiled(x, w), program(x, w))
    assert [check.compared for check in thunder.checks(compiled)] == [3]


def test_debug_recipe_can_be_added_to_other_recipes():
    from thunder_recipes.debug import Debug
    from thunder_recipes.default import Default

    class Wrong(thunder.Recipe):
        """One wrong operation."""

        executors = (implementing(F.relu, lambda x, inplace=False: F.relu(x) + 1), "torch")

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    for recipe in (Wrong() + Debug(), Debug() + Wrong()):
        with pytest.raises(
            WrongResult, match=r"the executor wrong computes a wrong result for torch.nn.functional.relu in `1`"
        ):
            thunder.compile(model, recipe)(torch.ones(1, 3))
    compiled = thunder.compile(model, Default() + Debug())
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), model(x))


SOURCE = Path(__file__).read_text().splitlines()
