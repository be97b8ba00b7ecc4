"""Arguments that share memory: a program traced for one layout of shared memory notices another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from tests.mutation.outcome import outcome
from tests.mutation.programs import ALIASED, OF_TWO, Make, disjoint, numbers, overlapping, same, two, whole_and_row
from tests.mutation.test_mutation import EXECUTORS
from thunder_core.foundation.errors import OperationFailed
from thunder_core.tracing.library.overlap import overlaps


@pytest.mark.parametrize("executors", EXECUTORS)
@pytest.mark.parametrize("first", ALIASED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("function", OF_TWO, ids=lambda function: function.__name__)
def test_other_sharing_than_the_traced_one_is_noticed(
    function: Callable[..., Any], first: Make, executors: str
) -> None:
    compiled = thunder.jit(function, executors=EXECUTORS[executors]())
    for make in (first, *ALIASED, first):
        eager, ours = outcome(function, make()), outcome(compiled, make())
        if "error" in eager.facts:
            assert ours.facts["error"][0] == eager.facts["error"][0], make.__name__
        else:
            assert eager.differences(ours) == [], make.__name__


def add_to_first(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


def test_writing_programs_are_traced_again_for_other_overlaps_with_the_reason() -> None:
    compiled = thunder.jit(add_to_first)
    for make in (two, disjoint, two):
        compiled(*make())
    assert thunder.cache_misses(compiled) == 1, "no overlap is no overlap, in one storage or in two"
    compiled(*overlapping())
    assert thunder.cache_misses(compiled) == 2
    assert "none overlapped in memory" in thunder.recompile_reasons(compiled)[-1]
    compiled(*two())
    compiled(*overlapping())
    assert thunder.cache_misses(compiled) == 2
    assert thunder.last_traces(compiled)[0].aliases == (("x", "y"),)


def test_programs_that_only_read_have_no_overlap_guards() -> None:
    compiled = thunder.jit(lambda x, y: x * 2 + y)
    for make in (two, overlapping, disjoint):
        compiled(*make())
    assert thunder.cache_misses(compiled) == 1
    assert "overlap_as" not in str(thunder.last_prologue_traces(compiled)[-1])


def test_the_same_tensor_twice_is_another_program_than_two_tensors() -> None:
    compiled = thunder.jit(lambda x, y: (x + y, x is y))
    assert [compiled(*make())[1] for make in (two, same, two, same)] == [False, True, False, True]
    assert thunder.cache_misses(compiled) == 2


def test_parameters_that_come_to_share_memory_are_noticed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(numbers(4))
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.5).add_(x)
            return x * self.weight

    model = Model()
    compiled = thunder.jit(model)
    compiled(numbers(4))
    model.mean = model.weight.detach()
    expected = numbers(4) * (model.weight.detach() * 0.5 + numbers(4))
    assert torch.equal(compiled(numbers(4)), expected)
    assert thunder.cache_misses(compiled) == 2


@pytest.mark.parametrize("view", [lambda row, size: row[:size], lambda row, size: row[::size][:3]])
def test_tensors_that_overlap_after_growing_are_noticed(view: Any) -> None:
    compiled = thunder.jit(add_to_first, cache="symbolic values")
    memory, again = numbers(40), numbers(40)
    for size in (3, 4, 6, 12, 6, 13, 4):  # the second tensor begins at 11
        found, expected = compiled(memory[11:14], view(memory, size)), add_to_first(again[11:14], view(again, size))
        assert torch.equal(found, expected)
        assert torch.equal(memory, again)


def test_overlaps_are_by_bytes() -> None:
    buffer = numbers(10, 4)
    assert overlaps((buffer[0], buffer[1], torch.ones(3), buffer[:0])) == ()
    assert overlaps((buffer[5], buffer, buffer.view(torch.int32)[9])) == (((1, 0), (0, 80), (2, 144)),)
    assert overlaps(whole_and_row()) == (((0, 0), (1, 16)),)
    assert overlaps((buffer[:4], buffer[2:6], buffer[8:], buffer[8])) == (((0, 0), (1, 32)), ((3, 0), (2, 0)))


def used(x: Tensor) -> Any:
    x = x * 1
    y = x.flatten()
    x.transpose_(0, 1)
    return y * y, x, y.is_leaf


def written_later(x: Tensor) -> Any:
    x = x * 1
    y = x.flatten()
    x.transpose_(0, 1)
    y.mul_(2)
    x[0] = 1
    return y.sin(), x


def other_elements(x: Tensor) -> Any:
    x = x * 1
    y = x[0]
    x.t_()
    (y * torch.arange(3)).sum().backward()
    return y.detach()


def of_another_view(x: Tensor) -> Any:
    x = x * 1
    y, z = x[:2], x.flatten()
    y.t_()
    z.mul_(y.sum())
    return y * 2, z


STRANDED = (used, written_later, other_elements, of_another_view)


@pytest.mark.parametrize("function", STRANDED, ids=lambda function: function.__name__)
def test_views_of_a_tensor_whose_shape_is_changed_in_place(function: Callable[..., Any]) -> None:
    """Autograd finds these views in the resized tensor."""
    told = []
    for called in (function, thunder.jit(function)):
        x = numbers(3, 3).requires_grad_()
        results = tree_leaves(called(x))
        if x.grad is None:
            sum(result.square().sum() for result in results if isinstance(result, Tensor)).backward()
        told.append((results, x.grad))
    torch.testing.assert_close(told[1], told[0])


def test_gradients_behind_writes_to_a_resized_tensor_are_refused() -> None:
    def program(x: Tensor) -> Tensor:
        x = x * 1
        y = x[0]
        x.t_()
        x.mul_(2)
        y.sum().backward()
        return y.detach()

    with pytest.raises(OperationFailed, match="has views and whose shape was changed in place"):
        thunder.jit(program, data_dependent="error")(numbers(3, 3).requires_grad_())


def base_of_view(x: Tensor, y: Tensor) -> Any:
    return y[:1]._base is x, y[:1]._base is y, x * 2


def version_of_view(x: Tensor, y: Tensor) -> Any:
    y.add_(1)
    return x[:1]._version - y[:1]._version, x.detach()._version - x._version


PAIRS: tuple[Callable[[Tensor], tuple[Tensor, Tensor]], ...] = (
    lambda whole: (whole, whole[1]),
    lambda whole: (whole, numbers(4)),
    lambda whole: (whole.add_(1), whole[1]),
    lambda whole: (whole[1:], whole[2]),
    lambda whole: (whole, whole.detach()[1]),
    lambda whole: (whole, whole.data[1]),
    lambda whole: (whole, whole),
)


@pytest.mark.parametrize("function", [base_of_view, version_of_view], ids=lambda function: function.__name__)
@pytest.mark.parametrize("grad", [False, True])
def test_base_and_version_of_views_of_inputs_that_share_memory(function: Callable[..., Any], grad: bool) -> None:
    compiled = thunder.jit(function)
    for pair in (*PAIRS, *reversed(PAIRS)):
        told = [tree_leaves(called(*pair(numbers(4, 4).requires_grad_(grad) * 1))) for called in (function, compiled)]
        assert told[1][:2] == told[0][:2]
