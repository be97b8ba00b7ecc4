"""A computation compares the tensors of its packed weights once, and then finds the packed weights at once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from thunder_core.backend.fusion.prepared_weights import PreparedWeights
from thunder_core.tracing.library.changes.kept_results import MAX_CHANGES, RUNNING, ComparingComputation
from thunder_core.tracing.library.changes.tensor_words import LAYOUT

pytestmark = pytest.mark.skipif(LAYOUT is None, reason="the layout of tensors in memory is not known")


class Program:
    """A program that multiplies an input by weights, each of which is stored as its double."""

    def __init__(self) -> None:
        self.prepared: PreparedWeights[Any] = PreparedWeights()
        self.compared = list[int]()  # the number of comparisons of the state of each weight, by call
        self.comparing = ComparingComputation(self, self.product)
        self.computation: Callable[..., Any] = self.comparing.first_call
        compared_form = self.prepared._compared_form

        def counted_form(*arguments: Any) -> Any:
            self.compared[-1] += 1
            return compared_form(*arguments)

        self.prepared._compared_form = counted_form  # type: ignore[method-assign]

    def replace_computation(self, computation: Callable[..., Any]) -> None:
        self.computation = computation

    def product(self, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = x * self.prepared.form_of((weight, None), lambda weight=weight: 2 * weight)
        return x

    def __call__(self, *inputs: Any) -> Any:
        self.compared.append(0)
        return self.computation(*inputs)


def test_weights_are_compared_one_by_one_in_the_first_two_calls_only() -> None:
    program, weights = Program(), (torch.ones(2), torch.ones(2))
    assert [program(torch.ones(2), *weights).tolist() for _ in range(5)] == [[4.0, 4.0]] * 5
    assert program.compared == [2, 2, 0, 0, 0]


@pytest.mark.parametrize("position", [0, 1])
def test_a_write_is_noticed_at_the_next_call(position: int) -> None:
    program, weights = Program(), (torch.ones(2), torch.ones(2))
    for number in range(1, 6):
        weights[position].fill_(number)
        for _ in range(3):
            assert program(torch.ones(2), *weights).tolist() == [4.0 * number] * 2


def test_other_weights_are_noticed() -> None:
    program, x = Program(), torch.ones(2)
    for number in range(1, 2 * MAX_CHANGES):
        assert program(x, torch.full((2,), float(number))).tolist() == [2.0 * number] * 2
    assert program.computation == program.product  # all calls had other weights


def test_a_computation_without_such_weights_runs_alone() -> None:
    program = Program()
    program(torch.ones(2))
    assert program.computation == program.product


def test_weights_whose_changes_are_unknown_are_compared_one_by_one() -> None:
    program, weight = Program(), torch.ones(1, 1, 1, 1, 1, 2)
    for number in range(4):
        assert program(torch.ones(2), weight.fill_(number)).flatten().tolist() == [2.0 * number] * 2
    assert program.compared == [1] * 4


def test_a_weight_and_its_form_are_freed() -> None:
    program, weight = Program(), torch.ones(2)
    for _ in range(3):
        program(torch.ones(2), weight)
    references = [weakref.ref(weight), weakref.ref(program.prepared.form_of((weight, None), lambda: None))]
    del weight
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_no_results_are_kept_outside_of_the_computation() -> None:
    program, weight = Program(), torch.ones(2)
    for _ in range(3):
        program(torch.ones(2), weight)
    with pytest.raises(RuntimeError, match="size"):
        program(torch.ones(3), weight)
    assert RUNNING.results is None
    weight.zero_()
    program.compared.append(0)
    assert program.product(torch.ones(2), weight).tolist() == [0.0, 0.0]


def test_a_program_within_another_keeps_its_own_results() -> None:
    inner, weight = Program(), torch.ones(2)

    class Outer(Program):
        def product(self, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
            x = super().product(inner(x, weight), *weights)
            weight.add_(1)
            return super().product(inner(x, weight), *weights)

    outer, own = Outer(), torch.ones(2)
    for number in range(1, 6):
        assert outer(torch.ones(2), own).tolist() == [16.0 * number * (number + 1)] * 2
