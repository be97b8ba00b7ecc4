"""Tensors whose data is replaced: later operations use the new shape, layout and dtype, also in fused regions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder


def turned(x: Tensor, layer: nn.Linear) -> Any:
    y = x * 1
    y.data = x.t() * 2
    return y + 1, y.sum(0), y.shape, y.stride()


def of_another_dtype(x: Tensor, layer: nn.Linear) -> Any:
    layer.double()
    return layer(x.double()) * 2, torch.zeros_like(layer.weight)


def of_an_argument(x: Tensor, layer: nn.Linear) -> Any:
    x.data = torch.cat([x, x * 3])
    return x.relu() + 1


def twice(x: Tensor, layer: nn.Linear) -> Any:
    before = layer.weight * 1
    layer.weight.data = layer.weight.data.t().contiguous() + 1
    layer.weight.data = layer.weight.data.t()
    return before, layer.weight * 2, layer(x)


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")], ids="+".join)
@pytest.mark.parametrize("with_gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", [turned, of_another_dtype, of_an_argument, twice])
def test_programs_continue_as_in_eager_after_data_is_replaced(
    program: Callable[..., Any], with_gradients: bool, executors: tuple[str, ...]
):
    torch.manual_seed(0)
    eager = nn.Linear(3, 3)
    ours, compiled = copy.deepcopy(eager), thunder.jit(program, executors=executors)
    with torch.set_grad_enabled(with_gradients):
        for seed in (1, 2):
            x = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
            mine = x.clone()
            wanted, found = program(x, eager), compiled(mine, ours)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close((mine, ours.state_dict()), (x, eager.state_dict()))
            if with_gradients and program is twice:
                for results in (wanted, found):
                    results[2].sum().backward()
                for parameter, reference in zip(ours.parameters(), eager.parameters(), strict=True):
                    torch.testing.assert_close(parameter.grad, reference.grad)


def given_away(x: Tensor, y: Tensor) -> Tensor:
    x.data = y
    y.data = torch.zeros([0])
    return x


def exchanged(x: Tensor, y: Tensor) -> Tensor:
    first = x.data
    x.data = y.data
    y.data = first
    return x + 1


def set_in_turn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.data = y
    y.data = x.data + 1
    setattr(x, "data", y[:2])  # noqa: B010
    return x * 2, y * 3


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", [given_away, exchanged, set_in_turn])
def test_assignments_of_data_take_effect_once_and_in_order(program: Callable[..., Any], requires_grad: bool):
    compiled = thunder.jit(program)
    for value in (1.0, 2.0):
        wanted, found = (
            [torch.full((6,), value * factor, requires_grad=requires_grad) for factor in (1, 10)] for _ in range(2)
        )
        torch.testing.assert_close(compiled(*found), program(*wanted))
        torch.testing.assert_close(found, wanted)


def sets_gradient(x: Tensor) -> None:
    x.grad = torch.full_like(x, 3)


def runs_backward(x: Tensor) -> None:
    (x * 2).sum().backward()


def takes_rows(x: Tensor) -> None:
    x.data = x.data[:2]


def halves(x: Tensor) -> None:
    x.data = x.data.half()


def adds_dimension(x: Tensor) -> None:
    with torch.no_grad():
        x.unsqueeze_(0)


@pytest.mark.parametrize("change", [takes_rows, halves, adds_dimension], ids=lambda function: function.__name__)
@pytest.mark.parametrize("assign", [sets_gradient, runs_backward], ids=lambda function: function.__name__)
def test_gradient_of_a_tensor_that_then_gets_another_shape_or_dtype(
    assign: Callable[[Tensor], None], change: Callable[[Tensor], None]
) -> None:
    def program(x: Tensor) -> None:
        assign(x)
        change(x)

    compiled = thunder.jit(program)
    told = []
    for called in (program, compiled, compiled):
        x = torch.ones(4, 3, requires_grad=True)
        called(x)
        told.append((x.detach(), x.grad))
    assert [(x.shape, x.dtype) for x, _ in told[1:]] == [(told[0][0].shape, told[0][0].dtype)] * 2
    torch.testing.assert_close(told[1:], [told[0]] * 2)


def test_swapped_tensors_equal_eager() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        torch.utils.swap_tensors(x, y)
        x.add_(1)
        return x * 2

    compiled = thunder.jit(program)
    with pytest.warns(thunder.errors.RecompileWarning, match="swaps two tensors"):
        for _ in range(3):
            x, y = torch.zeros(3), torch.ones(3)
            torch.testing.assert_close(
                (compiled(x, y), x, y), (torch.full((3,), 4.0), torch.full((3,), 2.0), torch.zeros(3))
            )


def test_conversion_that_swaps_parameters_equals_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)

    def program(layer: nn.Linear, x: Tensor) -> Tensor:
        layer.double()
        return layer(x)

    compiled = thunder.jit(program)
    for _ in range(2):
        layer, x = nn.Linear(3, 2), torch.ones(3, dtype=torch.float64)
        weight = layer.weight
        torch.testing.assert_close(compiled(layer, x), program(copy.deepcopy(layer), x))
        assert layer.weight is weight and weight.dtype is torch.float64
