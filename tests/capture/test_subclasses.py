"""Subclasses of Tensor: results and their classes match eager."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import thunder_core as thunder


class Plain(Tensor):
    """A subclass with only a method and a name."""

    def doubled(self) -> Any:
        return self * 2


class Derived(Plain):
    """A subclass of a subclass."""


class Named(Tensor):
    """A subclass with its own constructor."""

    @staticmethod
    def __new__(cls: Any, data: Any, name: str = "") -> Any:
        return torch.as_tensor(data).as_subclass(cls)

    def __init__(self, data: Any, name: str = "") -> None:
        self.label = name


class Counted(Tensor):
    """A subclass with `__torch_function__` that changes some results."""

    factor = 2.0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * cls.factor if func is torch.Tensor.add else result


class Overriding(Tensor):
    """A subclass that overrides methods, operators and attributes of Tensor."""

    def t(self) -> Any:
        return super().t() * 2

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) * 3

    def __sub__(self, other: Any) -> Any:
        return super().__sub__(other) * 5

    def __rsub__(self, other: Any) -> Any:
        return super().__rsub__(other) * 7

    def __lt__(self, other: Any) -> Any:
        return super().__lt__(other) | True

    @property
    def mT(self) -> Any:
        return super().mT * 11


def metadata(x: Any) -> Any:
    return x.shape, x.dtype, type(x), isinstance(x, Plain), type(x + 1).__name__, x.sum().item()


def operations(x: Any) -> Any:
    return x + 1, x.max(dim=0), x.split(2), x.view(2, 2).T, x[0], x.detach(), x.to(torch.float64), x.contiguous()


def methods(x: Any) -> Any:
    return x.doubled(), (x + 1).doubled().doubled(), nn.functional.softmax(x, dim=0)


def several(x: Any) -> Any:
    y = x.as_subclass(Derived)
    return x + y, y + x, torch.cat([y, x]), torch.add(x, torch.ones(4)), [x + 1, y + 1]


def unrelated(x: Any) -> Any:
    return x + Named(torch.ones(4))


def plain_again(x: Any) -> Any:
    return x.as_subclass(Tensor), x.as_subclass(Tensor) + 1, x


def attributes(x: Any) -> Any:
    x.seen = True
    y = x + 1
    y.parts = [y * 2, 5]
    return y


def written(x: Any) -> Any:
    total = torch.zeros(4)
    torch.add(x, 1, out=total)
    return x.add_(1), total


def parameter(x: Any) -> Any:
    made = Parameter(x)
    return made, isinstance(made, Parameter), made * 2


def differentiated(x: Any) -> Any:
    x.requires_grad_()
    (x * x).sum().backward()
    return x.grad, x


def constructed(x: Any) -> Any:
    made = Named(x.as_subclass(Tensor) * 2, name="twice")
    return made, made + 1, made.label, Plain(x), Plain([1.0, 2.0]), type(x)(x), x.new_zeros(3)


def branches(x: Any) -> Any:
    return x * 2 if x.sum() > 3 else x - 1


PROGRAMS: tuple[Callable[[Any], Any], ...] = (
    metadata,
    operations,
    methods,
    several,
    unrelated,
    plain_again,
    attributes,
    written,
    parameter,
    differentiated,
    constructed,
    branches,
)


def observable(value: Any) -> Any:
    """Return everything that can be observed of a value."""
    if isinstance(value, Tensor):
        texts = [(key, observable(item)) for key, item in vars(value).items()]
        return type(value), value.detach().as_subclass(Tensor).tolist(), value.requires_grad, value.is_leaf, texts
    return (type(value), [observable(item) for item in value]) if isinstance(value, list | tuple) else value


def run(program: Callable[..., Any], kind: type = Plain) -> list[Any]:
    """Return the results of two calls and the state of the argument, or the error."""
    texts = []
    for step in range(2):
        x = (torch.arange(4.0) + step).as_subclass(kind)
        try:
            texts += [observable(program(x)), observable(x)]
        except TypeError as error:
            texts.append(str(error))
    return texts


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_classes_of_results_match_eager(program: Callable[..., Any]) -> None:
    compiled = thunder.jit(program)
    assert run(compiled) == run(program)
    assert program is unrelated or thunder.cache_hits(compiled) == 1


def test_the_class_is_guarded() -> None:
    compiled = thunder.jit(operations)
    for kind in (Plain, Derived, Tensor):
        assert run(compiled, kind) == run(operations, kind)
    assert thunder.cache_misses(compiled) == 3


def test_gradients_of_a_subclass_match_eager() -> None:
    def gradient(function: Callable[[Any], Any]) -> Any:
        x = torch.arange(4.0).as_subclass(Plain).requires_grad_()
        total = function(x)
        total.backward()
        return type(total), observable(x.grad)

    def program(x: Any) -> Any:
        return (x.sin() * x).sum()

    compiled = thunder.jit(program)
    assert gradient(compiled) == gradient(program)
    assert "backward" in [stage.trace.name for stage in thunder.last_program(compiled).stages_of("backward")]


def test_torch_function_of_a_subclass_is_part_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any) -> Any:
        return x + 1, x.add(1) * 3, torch.sin(x)

    compiled = thunder.jit(program)
    assert run(compiled, Counted) == run(program, Counted)
    monkeypatch.setattr(Counted, "factor", 5.0)
    assert run(compiled, Counted) == run(program, Counted)
    assert thunder.cache_misses(compiled) == 2


OVERRIDDEN = {
    "a method": lambda x, y: x.t(),
    "an item": lambda x, y: x[0],
    "an operator": lambda x, y: x - y,
    "a reflected operator": lambda x, y: y - x,
    "a reflected operator of a computed tensor": lambda x, y: y.t() - x,
    "a comparison": lambda x, y: x < y,
    "a reflected comparison": lambda x, y: y > x,
    "a reflected comparison of a computed tensor": lambda x, y: y.t() > x,
    "an attribute": lambda x, y: x.mT,
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_override_of_a_tensor_method_is_called_once(name: str) -> None:
    def program(x: Any, y: Any) -> Any:
        return OVERRIDDEN[name](x, y)

    x, y = torch.tensor([[1.0, 2], [3, 4]]).as_subclass(Overriding), torch.full((2, 2), 2.5)
    assert observable(thunder.jit(program)(x, y)) == observable(program(x, y))


ASKED = {
    "left": lambda x, y: x > x.t(),
    "right": lambda x, y: x.t() > x,
    "equal": lambda x, y: x == x.t(),
    "by a function": lambda x, y: operator.le(x, x.t()),
    "a parameter": lambda x, y: x.t() > y,
    "a parameter on the left": lambda x, y: y >= x.t(),
}


@pytest.mark.parametrize("name", ASKED)
def test_comparison_is_handled_by_the_operand_that_eager_chooses(name: str) -> None:
    """The tensor that handles the comparison decides the strides of the result."""

    def program(x: Any, y: Any) -> Any:
        return ASKED[name](x, y)

    given = torch.randn(3, 3), Parameter(torch.randn(3, 3))
    expected, found = program(*given), thunder.jit(program)(*given)
    assert (found.stride(), found.tolist()) == (expected.stride(), expected.tolist())
