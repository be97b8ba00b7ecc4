"""Modes of PyTorch around a call: they see the operations of the program, and nothing of its tracing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import thunder_core as thunder

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Watched(TorchDispatchMode):
    """A mode that records the operations, and reads the values of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append(str(func))
        if isinstance(result, Tensor) and func is not torch.ops.aten.detach.default:
            assert result.sum().isfinite().item(), func
        return result


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def step(model: Any) -> Tensor:
    """Return the gradient of the weight."""
    model(X).square().sum().backward()
    gradient, model[0].weight.grad = model[0].weight.grad, None
    assert isinstance(gradient, Tensor)
    return gradient


def call(model: Any) -> Tensor:
    """Return the result of a call."""
    result = model(X)
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize("use", [call, step])
def test_operations_are_counted_once(use: Callable[[Any], Tensor]) -> None:
    model = network()
    with FlopCounterMode(display=False) as expected:
        wanted = use(model)
    compiled = thunder.jit(model)
    for _ in range(3):
        with FlopCounterMode(display=False) as counted:
            assert torch.equal(use(compiled), wanted)
        assert counted.get_total_flops() == expected.get_total_flops()


@pytest.mark.parametrize("use", [call, step])
def test_mode_gets_no_tensor_without_data(use: Callable[[Any], Tensor]) -> None:
    model = network()
    compiled = thunder.jit(model)
    for _ in range(2):
        with Watched() as watched:
            assert torch.equal(use(compiled), use(model))
        assert watched.operations.count("aten.addmm.default") == 2


def test_mode_is_active_after_a_call_that_raises() -> None:
    def program(x: Tensor) -> Tensor:
        raise ValueError("refused")

    with Watched() as watched:
        with pytest.raises(ValueError, match="refused"):
            thunder.jit(program)(X)
        torch.neg(X)
    assert watched.operations == ["aten.neg.default"]


@pytest.fixture
def anomaly_detection() -> Iterator[None]:
    """Anomaly detection, which looks for NaN in each backward operation."""
    torch.set_anomaly_enabled(True)
    yield
    torch.set_anomaly_enabled(False)


@pytest.mark.usefixtures("anomaly_detection")
def test_anomaly_detection_finds_the_operation_without_other_warnings() -> None:
    def program(x: Tensor) -> Tensor:
        return (x.sqrt() * 0).sum()

    compiled = thunder.jit(program)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(torch.ones(2, requires_grad=True)).backward()
    assert not caught
    for function in (program, compiled):
        loss = function(torch.zeros(2, requires_grad=True))
        with pytest.warns(UserWarning, match="Error detected"), pytest.raises(RuntimeError, match="nan values"):
            loss.backward()
    assert thunder.last_backward_reason(compiled) == "anomaly detection was on when it was traced"
