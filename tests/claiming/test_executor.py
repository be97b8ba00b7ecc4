"""Executors of single operations: calls are claimed by the operation itself and not by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder

OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[Tensor], Any]]] = {
    "a function": (torch.sin, lambda x: torch.sin(x)),
    "a method": (torch.Tensor.add, lambda x: x + 1),
    "a property": (torch.Tensor.T.__get__, lambda x: x.T),  # type: ignore[attr-defined]
    "of lists": (torch._foreach_add, lambda x: torch._foreach_add([x], 1)),
    "an overload": (torch.ops.aten.mm.default, lambda x: torch.ops.aten.mm.default(x, x)),
    "a packet": (torch.ops.aten.mm, lambda x: torch.ops.aten.mm(x, x)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_claimed_under_all_its_names(name: str) -> None:
    operation, program = OPERATIONS[name]
    mine = thunder.OperatorExecutor("mine")
    calls = []

    @mine.implements(operation)
    def called(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return operation(*args, **kwargs)

    x = torch.rand(2, 2)
    torch.testing.assert_close(thunder.jit(program, executors=[mine, "torch"])(x), program(x))
    assert calls == [name]


IN_PLACE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "inplace": lambda x, out: functional.silu(x, inplace=True),
    "out": lambda x, out: torch.sin(x, out=out),
    "method": lambda x, out: x.sin_(),
}


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    return x * torch.sigmoid(x)


def sine(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    return x * 0


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_operation_is_left_to_executors_that_write(name: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        x, out = x * 1, torch.zeros(3)
        IN_PLACE[name](x, out)
        return x, out

    mine = thunder.OperatorExecutor("mine")
    mine.implements(functional.silu)(silu)
    for operation in (torch.sin, torch.Tensor.sin_):
        mine.implements(operation)(sine)
    x = torch.rand(3)
    torch.testing.assert_close(thunder.jit(program, executors=[mine, "torch"])(x), program(x))


def test_executor_that_writes_may_claim_an_in_place_operation() -> None:
    mine = thunder.OperatorExecutor("mine")

    @mine.implements(torch.Tensor.zero_, writes=True)
    def sevens(x: Tensor) -> Tensor:
        return x.fill_(7)

    def program(x: Tensor) -> Tensor:
        x = x * 1
        x.zero_()
        return x

    assert thunder.jit(program, executors=[mine, "torch"])(torch.ones(2)).tolist() == [7, 7]


def test_functions_of_one_factory_have_their_own_derivatives() -> None:
    def calling(operation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            return operation(x)

        return call

    mine = thunder.OperatorExecutor("mine")
    for operation in (torch.sin, torch.cos):
        mine.implements(operation)(calling(operation))

    def program(x: Tensor) -> Tensor:
        return torch.sin(x) - torch.cos(x * 2)

    x = torch.tensor(1.0, requires_grad=True)
    ours, theirs = (
        torch.autograd.grad(call(x), x) for call in (thunder.jit(program, executors=[mine, "torch"]), program)
    )
    torch.testing.assert_close(ours, theirs)
