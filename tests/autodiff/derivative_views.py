"""Programs with views, random numbers, running statistics and changes of the grad mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.autodiff.derivative_cases import case, leaf


def views(x: torch.Tensor, y: torch.Tensor) -> Any:
    hidden = x * y
    return hidden, hidden[0], hidden.T.unsqueeze(0), x.view(-1), y, x


@case(views)
def returned_views(program):
    x, y = leaf(3, 3), leaf(3, 3, seed=1)
    base, row, turned, flat, same, given = program(x, y)
    shared = [row.data_ptr() == base.data_ptr(), flat.data_ptr() == x.data_ptr(), same is y, given is x]
    (base.sum() + row.square().sum() + turned.sin().sum() + flat.exp().sum() + same.sum()).backward()
    return [base, row, turned, flat, *shared, x.grad, y.grad, row._is_view(), flat._base is x]


@case(views)
def views_written_to(program):
    x, y = leaf(3, 3), leaf(3, 3, seed=1)
    base, row, _, _, _, _ = program(x, y)
    row.mul_(3)
    base.sum().backward()
    return [base, row, x.grad, y.grad]


@case(lambda x: x.view(2, 6).transpose(0, 1))
def nothing_but_views(program):
    x = leaf(3, 4)
    out = program(x)
    out.square().sum().backward()
    return [out, x.grad, out._base is x]


@case(lambda x, index: functional.embedding(index, x)[..., :2].cumsum(0))
def integers(program):
    x, index = leaf(5, 3), torch.tensor([[0, 4], [4, 1]])
    out = program(x, index)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: functional.dropout(x, 0.5) + torch.rand_like(x) * x, derived=True)
def random_numbers(program):
    x = leaf(8, 8)
    torch.manual_seed(3)
    out = program(x)
    after = torch.rand(2)
    out.square().sum().backward()
    return [out, after, x.grad]


@case(lambda x: functional.dropout(x, 0.5) * x)
def random_second_derivative(program):
    x = leaf(8, 8)
    torch.manual_seed(3)
    (first,) = torch.autograd.grad(program(x).pow(3).sum(), [x], create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), [x])
    return [first, second, torch.rand(2)]


def written_before_overlapping_windows(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y /= 3
    return y.view(12).as_strided((5, 4), (2, 1)).sin() + y.t().add(1).as_strided((4, 3), (3, 1)).sum()


@case(written_before_overlapping_windows)
def windows_of_what_was_written(program):
    x = leaf(3, 4)
    out = program(x)
    out.square().sum().backward()
    return [out, x.grad]


def written_beneath_windows_of_a_transpose(x: torch.Tensor) -> torch.Tensor:
    y = (x.t() * 2).exp()
    y += 1
    return y.as_strided((6, 2), (2, 1)).square()


@case(written_beneath_windows_of_a_transpose, derived=False)
def windows_of_what_was_written_after_it_was_saved(program):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program(leaf(3, 4)).sum().backward()
    return []


@case(lambda x: (x.t() * 2).add_(1).as_strided((6, 2), (2, 1)).square())
def windows_of_a_transpose_that_was_written(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: (x * 2).add_(1)[:1].as_strided((3, 2), (4, 1)).sin(), derived=False)
def windows_beyond_the_rows_that_they_are_taken_of(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: x.view(torch.div(x.shape[0] * 4, 2, rounding_mode="trunc"), 2).sin())
def shapes_by_constant_tensors(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: (x * 2).add_(1).view(torch.div(x.shape[0] * 4, 2, rounding_mode="trunc"), 2).sin())
def shapes_by_constant_tensors_of_what_was_written(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: (x * 2)[:, [0, 2]].sin())
def numbers_as_an_index(program):
    x = leaf(3, 4)
    program(x).sum().backward()
    return [x.grad]


@case(lambda x, y: functional.softplus(functional.linear(x, y)).mT.contiguous().sin())
def strides_that_metadata_gets_wrong(program):
    x, y = leaf(2, 12, 3), leaf(3, 3, seed=1)
    program(x, y).sum().backward()
    return [x.grad, y.grad]


def partly_off(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return (x / scale).exp()


@case(partly_off)
def grad_mode_inside(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


def matched(x: torch.Tensor) -> torch.Tensor:
    """Detection losses choose by costs, which they compute from views with autograd disabled."""
    hidden = x * 2
    with torch.no_grad():
        costs = hidden.flatten().view(4, 3).mT.softmax(-1)
        chosen = costs.argmax()
    return hidden.sin() * chosen


@case(matched)
def views_that_only_choose(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


def used_where_autograd_is_on(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = x * 2
    with torch.no_grad():
        apart = hidden.view(4, 3).mT
    return hidden.sin(), apart * 3


@case(used_where_autograd_is_on, derived=False)
def views_that_are_leaves(program):
    x = leaf(3, 4)
    out, apart = program(x)
    (out.sum() + apart.sum()).backward()
    return [out, apart, x.grad, apart.requires_grad]


def returned_from_where_autograd_is_off(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = x * 2
    with torch.no_grad():
        apart = hidden.view(4, 3)[1:]
    return hidden.sin(), apart


@case(returned_from_where_autograd_is_off, derived=False)
def views_that_are_returned_as_leaves(program):
    x = leaf(3, 4)
    out, apart = program(x)
    out.sum().backward()
    return [out, apart, x.grad, apart.requires_grad, apart.is_leaf]


def written_where_autograd_is_off(x: torch.Tensor) -> torch.Tensor:
    hidden = x * 2
    with torch.no_grad():
        hidden.view(-1).mul_(3)
    return hidden.sin()


@case(written_where_autograd_is_off, derived=False)
def views_that_are_written_to_where_autograd_is_off(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


def kept_beside_values(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A state is created and written to; C++ code reads values as sizes."""
    state = torch.zeros(3, 4)
    hidden = x * 2
    state.copy_(hidden)
    sizes = torch.tensor([places.max(), places.min()])
    return hidden.sin() * sizes.sum(), state


@case(kept_beside_values)
def states_beside_what_reads_values_by_itself(program):
    x = leaf(3, 4)
    out, state = program(x, torch.arange(4))
    (out.sum() + state.sum()).backward()
    return [out, state, x.grad]


def norm_in_training(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, mean, variance, training=True)


@case(norm_in_training)
def running_statistics(program):
    x, mean, variance = leaf(4, 3), torch.zeros(3), torch.ones(3)
    out = program(x, mean, variance)
    out.square().sum().backward()
    return [out, x.grad, mean, variance]


def counting(x: torch.Tensor, y: torch.Tensor, calls: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    calls.add_(1)
    return x.exp(), (x * y).sin()


@case(counting)
def some_results_of_one_that_writes(program):
    x, y, calls = leaf(3, 3), leaf(3, 3, seed=1), torch.zeros(())
    first, _ = program(x, y, calls)
    first.sum().backward()
    return [x.grad, y.grad, calls]


@case(lambda x: (x.exp(), x.int().sum(), x.detach()))
def not_all_are_differentiable(program):
    x = leaf(3, 4)
    out, number, cut = program(x)
    out.sum().backward()
    return [out, number, cut, cut.requires_grad, number.requires_grad, x.grad]


@case(lambda x, y: torch.where(x > 0, x, y).masked_fill(y > 1, 0.0) @ torch.eye(4))
def masks(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    program(x, y).square().mean().backward()
    return [x.grad, y.grad]


@case(lambda x: torch.complex(x, x.sin()).abs().sum())
def complex_numbers(program):
    x = leaf(3, 4)
    program(x).backward()
    return [x.grad]


@case(lambda x: torch.as_strided_copy(x, (2, 2), (1, 2)).square().sum())
def a_backward_that_writes_to_a_view(program):
    x = leaf(3, 4)
    program(x).backward()
    return [x.grad]


@case(torch.nn.LSTM(3, 4))
def an_operation_that_saves_only_while_autograd_is_on(program):
    x = leaf(2, 1, 3)
    program(x)[0].square().sum().backward()
    return [x.grad]
