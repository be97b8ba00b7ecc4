"""The objects that a compiled program keeps alive: no more than in eager PyTorch, without the garbage collector."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder

pytestmark = pytest.mark.usefixtures("without_collector")


def with_a_view_saved(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y, (y.view(-1) * y.view(-1)).sum()


def with_a_transpose_saved(x: Tensor) -> tuple[Tensor, Tensor]:
    y = functional.softmax(x, -1)
    return y, y.t().mm(y)


def attention(x: Tensor) -> tuple[Tensor, ...]:
    y = functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
    return y, y.transpose(1, 2).reshape(x.shape[0], -1) @ x


PROGRAMS: tuple[Callable[..., tuple[Tensor, ...]], ...] = (with_a_view_saved, with_a_transpose_saved, attention)


def alive(compiled: Any, use: Callable[[tuple[Tensor, ...]], object]) -> list[int]:
    """The results that stay alive without a reference from the caller."""
    x = torch.randn(3, 3, requires_grad=True)
    results = compiled(x)
    use(results)
    known = [weakref.ref(result) for result in results]
    del results
    return [index for index, reference in enumerate(known) if reference() is not None]


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_do_not_outlive_their_last_use_without_a_backward(program: Callable[..., Any]) -> None:
    compiled = thunder.jit(program)
    assert alive(compiled, lambda results: None) == []
    assert alive(compiled, lambda results: results[-1].sum().backward()) == []


def test_a_write_to_the_memory_of_a_saved_view_is_noticed() -> None:
    compiled = thunder.jit(with_a_view_saved)
    y, total = compiled(torch.randn(3, 3, requires_grad=True))
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def branches(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def draws(x: Tensor) -> Tensor:
    return functional.dropout(x).view(-1) * 2


def returns_its_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x * 2


def writes(x: Tensor) -> Tensor:
    y = x * 2
    y.mul_(x.view_as(y))
    return y


def differentiates(x: Tensor) -> Tensor:
    y = (x.detach().requires_grad_() ** 2).sum()
    y.backward()
    return y


def raises(x: Tensor) -> Tensor:
    raise ValueError(f"{x.shape} is no good")


CALLS = (branches, draws, returns_its_input, writes, differentiates, raises, lambda x: x.sin(), *PROGRAMS)


@pytest.mark.parametrize("program", CALLS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_inputs_do_not_outlive_the_call(program: Callable[..., Any], requires_grad: bool) -> None:
    compiled = thunder.jit(program)
    for sign in (1.0, 1.0, -1.0, 1.0):  # traced, served, traced for another value, served again
        x = torch.full((3, 3), sign, requires_grad=requires_grad)
        known = weakref.ref(x)
        with contextlib.suppress(ValueError):
            compiled(x)
        del x
        assert known() is None


class OfModule:
    """An owner of a tensor, whose class has another one."""

    weight = torch.ones(3)

    def __init__(self) -> None:
        self.bias = torch.ones(3)


def test_replaced_tensors_of_objects_and_classes_are_not_kept() -> None:
    owner = OfModule()
    compiled = thunder.jit(lambda x: x * OfModule.weight + owner.bias)
    compiled(torch.ones(3))
    former = [weakref.ref(OfModule.weight), weakref.ref(owner.bias)]
    OfModule.weight, owner.bias = torch.zeros(3), torch.ones(3)
    assert [reference() for reference in former] == [None, None]
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3))


def test_a_class_is_freed_with_its_last_compiled_module() -> None:
    class Local(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()  # this function refers to its class
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    compiled = thunder.jit(Local())
    compiled(torch.ones(3))
    kind = weakref.ref(Local)
    del Local, compiled
    gc.collect()  # classes refer to themselves
    assert kind() is None
