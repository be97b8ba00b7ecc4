"""Operations that PyTorch refuses are refused with PyTorch's message and the source line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import thunder_core as thunder
from tests.mutation.programs import Make, inner, leaf, leaf_and_plain, numbers, one, two


def leaf_in_place(x: Tensor) -> Tensor:
    return x.add_(1)  # here


def view_of_a_leaf_in_place(x: Tensor) -> Tensor:
    row = x[0]
    return row.mul_(2)  # here


def leaf_item(x: Tensor) -> Tensor:
    x[0] = 1.0  # here
    return x


def leaf_as_out(x: Tensor, y: Tensor) -> Tensor:
    return torch.add(y, y, out=x)  # here


def activation_of_a_leaf(x: Tensor) -> Tensor:
    return functional.relu(x, inplace=True)  # here


def shapes(x: Tensor, y: Tensor) -> Tensor:
    hidden = x.sin()
    return hidden @ y[:3]  # here


def broadcasts(x: Tensor, y: Tensor) -> Tensor:
    return x + y[:, :3]  # here


def copies_of_another_shape(x: Tensor, y: Tensor) -> Tensor:
    return x.copy_(y[:3])  # here


def views_of_another_size(x: Tensor) -> Tensor:
    return x.view(3, 5)  # here


def resizes_what_requires_grad(x: Tensor) -> Tensor:
    return x.resize_(2)  # here


def requires_grad_of_integers(x: Tensor) -> Tensor:
    return x.int().requires_grad_()  # here


def detached_unbinding(x: Tensor) -> Tensor:
    first, *_ = x.unbind()
    return first.add_(1)  # here


def writes_to_expanded_memory(x: Tensor) -> Tensor:
    y = x.clone() + 1
    return y[0].expand(3, 4).add_(1)  # here


WHILE_TRACING: dict[str, tuple[Callable[..., Any], Make]] = {
    function.__name__: (function, make)
    for make, functions in (
        (leaf, (leaf_in_place, view_of_a_leaf_in_place, leaf_item, activation_of_a_leaf, resizes_what_requires_grad)),
        (lambda: (numbers(4, 4),), (writes_to_expanded_memory,)),
        (one, (views_of_another_size, requires_grad_of_integers)),
        (two, (shapes, broadcasts, copies_of_another_shape)),
        (leaf_and_plain, (leaf_as_out,)),
        (inner, (detached_unbinding,)),
    )
    for function in functions
}


@dataclass
class Refusal:
    """The class of an error, its message, and the printed traceback."""

    kind: type
    message: str
    told: str


def refusal(function: Callable[..., Any], *args: Any) -> Refusal:
    with pytest.raises(Exception) as caught:
        function(*args)
    return Refusal(caught.type, str(caught.value), "".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize("name", WHILE_TRACING)
def test_errors_have_the_message_of_pytorch_and_name_the_source_line(name: str) -> None:
    function, make = WHILE_TRACING[name]
    eager, ours = refusal(function, *make()), refusal(thunder.jit(function), *make())
    assert (ours.kind, ours.message) == (eager.kind, eager.message)
    assert "# here" in ours.told


def test_a_parameter_modified_in_place() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight.mul_(x)  # here

    eager, ours = refusal(Model(), torch.ones(4)), refusal(thunder.jit(Model()), torch.ones(4))
    assert (ours.kind, ours.message) == (eager.kind, eager.message)
    assert "# here" in ours.told


# ---- at the call, or behind it ------------------------------------------------------------------------------------


def looks_up(x: Tensor, index: Tensor) -> Tensor:
    hidden = x * 2
    return hidden.index_select(0, index)  # here


def draws(x: Tensor, index: Tensor) -> Tensor:
    return torch.bernoulli(x + 5) + index.sum()  # here


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("function", [looks_up, draws], ids=lambda function: function.__name__)
def test_errors_that_depend_on_values_name_the_source_line(function: Callable[..., Any], grad: bool) -> None:
    arguments = numbers(4, 4, grad=grad), torch.tensor([9])
    eager, ours = refusal(function, *arguments), refusal(thunder.jit(function), *arguments)
    assert (ours.kind, ours.message) == (eager.kind, eager.message)
    lines, first = inspect.getsourcelines(function)
    line = first + next(index for index, text in enumerate(lines) if "# here" in text)
    assert f"at: {__file__}:{line}, in {function.__name__}" in ours.told


def twice(function: Callable[..., Any], *args: Any) -> None:
    result = function(*args).sum()
    result.backward()
    result.backward()


def once(function: Callable[..., Any], *args: Any) -> None:
    function(*args).sum().backward()


BACKWARD: dict[str, tuple[Callable[..., Any], Callable[..., Any], Make]] = {
    "a second backward": (twice, lambda x: x.sin().exp(), leaf),
    "a second backward of a module": (twice, lambda x: functional.layer_norm(x, (4,)), leaf),
    "no derivative": (once, lambda x, y: torch.igamma(x.abs() + 1, y.abs()), leaf_and_plain),
    "no derivative within": (once, lambda x, y: torch.igamma(x.exp(), y.abs()).exp(), leaf_and_plain),
    "nothing to differentiate": (once, lambda x: x.sin(), one),
    "detached": (once, lambda x: x.detach() * 2, leaf),
    "integers": (once, lambda x: x.int() + 1, leaf),
    "written to after it was saved": (once, lambda x: saved_and_written(x), leaf),
}  # fmt: skip


def saved_and_written(x: Tensor) -> Tensor:
    y = x.exp()
    y.mul_(2)
    return y


@pytest.mark.parametrize("name", BACKWARD)
def test_errors_of_the_backward_match_eager(name: str) -> None:
    way, function, make = BACKWARD[name]
    eager, ours = refusal(way, function, *make()), refusal(way, thunder.jit(function), *make())
    assert issubclass(ours.kind, eager.kind)
    assert ours.message == eager.message or "no derivative of `torch.igamma`\n  at: " in ours.message
    assert f"in {way.__name__}" in ours.told, "backward is called by the user's own line"


def test_a_backward_may_run_again_if_the_graph_is_retained() -> None:
    (x,) = leaf()
    result = thunder.jit(lambda x: x.sin().exp())(x).sum()
    result.backward(retain_graph=True)
    first = x.grad.clone()
    result.backward()
    assert torch.equal(x.grad, first * 2)
