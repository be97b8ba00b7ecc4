"""Objects that a program creates, and passes to a torch.autograd.Function, hold the tensors of each call."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning


class Applied(torch.autograd.Function):
    """A function of a tensor, a function, and the tensors that this function reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Any, *read: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(x, *read)
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *read = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.function(x)
        of_x, *of_read = torch.autograd.grad(y, (x, *read), gradient)
        return (of_x, None, *of_read)


@dataclass(slots=True)
class Box:
    """An object with slots, one of them private."""

    k: Any
    __private: Any = 1

    def times(self, x: Tensor) -> Tensor:
        return x.sin() * self.k * self.__private

    def held(self) -> Any:
        return self.k


class Factors(NamedTuple):
    """A named tuple that is called."""

    first: Any

    def __call__(self, x: Tensor) -> Tensor:
        return x.sin() * self.first


class Layer(torch.nn.Module):
    """A module that the program creates around a tensor."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() * self.weight


def times(x: Tensor, k: Any) -> Tensor:
    return x.sin() * k


def of_namespace(space: Any, x: Tensor) -> Tensor:
    return x.sin() * space.k


def looked_up(table: Any, x: Tensor) -> Tensor:
    return x.sin() * table["k"]


def with_attribute(k: Tensor) -> Callable[..., Tensor]:
    def function(x: Tensor) -> Tensor:
        return x.sin() * function.k  # type: ignore[attr-defined]

    function.k = k  # type: ignore[attr-defined]
    return function


def recursive(k: Tensor) -> Callable[..., Tensor]:
    def power(x: Tensor, n: int = 3) -> Tensor:
        return x.sin() if n == 0 else power(x, n - 1) * k

    return power


def in_itself(k: Tensor) -> Callable[..., Tensor]:
    items: list[Any] = [k]
    items.append(items)
    return lambda x: x.sin() * items[1][0]


FUNCTIONS: dict[str, Callable[[Any], Callable[..., Tensor]]] = {
    "a closure": lambda k: lambda x: x.sin() * k,
    "a default": lambda k: lambda x, k=k: x.sin() * k,
    "a default by name": lambda k: lambda x, *, k=k: x.sin() * k,
    "a partial function": lambda k: functools.partial(times, k=k),
    "a method": lambda k: Box(k).times,
    "a method of C": lambda k: k.mul,
    "a named tuple": Factors,
    "a module": Layer,
    "an attribute of a function": with_attribute,
    "a recursive function": recursive,
    "a list in itself": in_itself,
    "a deque": lambda k: lambda x, d=deque([k]): x.sin() * d[0],
    "a dict of a class": lambda k: functools.partial(looked_up, OrderedDict(k=k)),
    "a namespace": lambda k: functools.partial(of_namespace, types.SimpleNamespace(k=k)),
    "a partial method of C": lambda k: functools.partial(k.mul),
    "objects in objects": lambda k: Box([(Box(k).times,)]).k[0][0],
}


def gradients(run: Callable[..., Tensor], n: int) -> list[Any]:
    """Return the result of a call, and the gradients of its inputs."""
    torch.manual_seed(n)
    x, w = torch.rand(n, requires_grad=True), torch.rand(n, requires_grad=True)
    result = run(x, w)
    (result * torch.arange(n)).sum().backward()
    return [result, x.grad, w.grad]


def assert_equal(program: Callable[..., Tensor], cache: str, programs: int) -> None:
    compiled = thunder.jit(program, cache=cache)
    for n in (3, 3, 5, 4):
        torch.testing.assert_close(gradients(compiled, n), gradients(program, n))
    assert thunder.cache_misses(compiled) == programs


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_computed_tensor_in_an_object_comes_from_the_call(name: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        k = w.exp()
        return Applied.apply(x, FUNCTIONS[name](k), k)

    assert_equal(program, "symbolic values", 1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_in_an_object_comes_from_the_call(name: str) -> None:
    assert_equal(lambda x, w: Applied.apply(x, FUNCTIONS[name](w), w), "symbolic values", 1)


def test_a_tensor_that_only_an_object_holds_gets_no_gradient() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        k = w.exp()
        return Applied.apply(x, lambda v: v * k) + 0 * w

    assert_equal(program, "symbolic values", 1)


def test_a_size_in_an_object_needs_no_program_of_its_own() -> None:
    assert_equal(lambda x, w: Applied.apply(x, Box(x.size(0)).times) + 0 * w, "symbolic values", 1)


def test_the_backward_of_such_a_function_is_derived_ahead() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, box: Box) -> Tensor:
            ctx.box = box
            return box.times(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            return gradient * ctx.box.k, None

    compiled = thunder.jit(lambda x, w: Scaled.apply(x, Box(w.exp())) + 0 * w)
    gradients(compiled, 3)
    assert thunder.last_backward_reason(compiled) == ""


class Scale(torch.autograd.Function):
    """A function of a tensor and of an object, which its backward reads too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, box: Any) -> Tensor:
        ctx.box = box
        return x * box.k

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.box.k, None


class ForwardScale(torch.autograd.Function):
    """A function of a tensor and of an object, which its backward does not read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, box: Any) -> Tensor:
        return x * box.k

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 2, None


def changed_later(kind: Any, x: Tensor) -> Tensor:
    box = Box(2.0)
    result = kind.apply(x, box)
    box.k = 5.0
    return result * box.k


def test_a_forward_reads_an_object_as_it_is_at_the_call() -> None:
    program = functools.partial(changed_later, ForwardScale)
    assert_equal(lambda x, w: program(x) + 0 * w, "symbolic values", 1)


def test_an_object_that_a_backward_keeps_and_the_program_changes_is_left_to_eager() -> None:
    program, gradients = functools.partial(changed_later, Scale), []
    for run in (program, thunder.jit(program)):
        x = torch.ones(2, requires_grad=True)
        expected = r"`Scale`.* keeps an object of class Box that the program creates for its backward"
        with nullcontext() if run is program else pytest.warns(RecompileWarning, match=expected):
            run(x).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_an_object_from_outside_that_holds_a_tensor_comes_from_the_call() -> None:
    def program(x: Tensor, box: Box) -> Tensor:
        return Scale.apply(x, box)

    compiled = thunder.jit(program)
    for factor in (2.0, 3.0):
        results = []
        for run in (compiled, program):
            x = torch.ones(2, requires_grad=True)
            result = run(x, Box(torch.tensor(factor)))
            result.sum().backward()
            results.append([result, x.grad])
        torch.testing.assert_close(*results)


@functools.cache
def nodes(n: int) -> Tensor:
    return torch.linspace(0, 1, n)


class Cached(torch.autograd.Function):
    """A function whose methods read tensors from a cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, in_forward: bool) -> Tensor:
        return x * nodes(len(x)) if in_forward else x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * nodes(len(gradient)), None


@pytest.mark.parametrize("in_forward", [True, False])
def test_tensors_without_data_stay_out_of_the_cache_of_a_function(in_forward: bool) -> None:
    nodes.cache_clear()
    compiled = thunder.jit(lambda x: Cached.apply(x, in_forward))
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        compiled(x).sum().backward()
        assert torch.equal(x.grad, torch.linspace(0, 1, 3))
    assert type(nodes(3)) is Tensor
